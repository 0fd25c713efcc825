"""Jobs `replay` and `backfill`: write a range of a topic again."""
