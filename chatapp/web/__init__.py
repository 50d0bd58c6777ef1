"""The chat window in a browser."""
