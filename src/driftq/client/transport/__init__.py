"""Calls as plans, the drivers that perform them, and retries."""
