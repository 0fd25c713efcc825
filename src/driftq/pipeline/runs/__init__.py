"""Starts, records and ends a run of a pipeline."""
