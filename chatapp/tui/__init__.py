"""The terminal window."""
