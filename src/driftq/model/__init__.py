"""Pure values: no I/O, no clock, no threads."""
