"""Buffered producers: many appends become few requests."""
