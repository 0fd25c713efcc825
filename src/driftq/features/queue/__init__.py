"""Queues: claims, leases, settlement, dead letters and pushed jobs."""
