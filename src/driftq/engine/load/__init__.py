"""Limits on what the server accepts, back-pressure, and fairness between topics."""
