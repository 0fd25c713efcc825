"""Metrics, vitals and the log of requests, for monitoring."""
