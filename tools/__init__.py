"""What builds and illustrates the project; never imported by it, never installed."""
