"""Counters for monitoring."""
