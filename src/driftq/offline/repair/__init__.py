"""Repairs a damaged data directory, and keeps the original files."""
