"""Conversations, policy and persistence. Knows no screen and no native library."""
