"""Calls for topics: records, queues, watches, tables."""
