"""What starts, records and ends a run."""
