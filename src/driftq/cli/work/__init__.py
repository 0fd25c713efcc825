"""Commands for queues, groups, runs and dead letters."""
