"""Front ends: the command line and the terminal window."""
