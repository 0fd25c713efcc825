"""The lake: Delta tables that hold what the jobs have made of topics."""
