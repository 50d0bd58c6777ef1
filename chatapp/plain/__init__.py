"""Plain mode: the same conversations line by line, for screen readers, simple terminals and pipes."""
