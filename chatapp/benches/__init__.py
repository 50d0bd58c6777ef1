"""What `chatapp bench` measures: a module for each command, all through the real engine process in a temporary folder.

Keys are documented in docs/performance.md. A key that ends in `_ratio` is measured in one run on both sides, and is
the median over neighbouring pairs, because the speed of a shared machine drifts.
"""
