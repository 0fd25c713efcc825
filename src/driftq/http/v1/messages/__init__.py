"""Produce, consume, settle."""
