"""Engines, and everything about a model. Knows nothing of conversations or screens."""
