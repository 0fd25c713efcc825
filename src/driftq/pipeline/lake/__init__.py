"""The lake: Delta tables that the jobs write from topics."""
