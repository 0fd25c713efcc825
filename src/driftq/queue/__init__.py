"""Queues: topics whose records are handed out as jobs, one holder at a time."""
