"""Queues, groups and runs."""
