"""The topic API."""
