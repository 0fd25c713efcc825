"""The wire."""
