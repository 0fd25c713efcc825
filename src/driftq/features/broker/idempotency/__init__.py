"""Idempotency keys of producers and consumers: which work was done already."""
