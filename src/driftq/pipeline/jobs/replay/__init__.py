"""Jobs `replay` and `backfill`."""
