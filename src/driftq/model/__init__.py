"""Plain values: no I/O, no clock, no threads."""
