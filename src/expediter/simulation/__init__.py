"""The same cluster on a clock that jumps."""
