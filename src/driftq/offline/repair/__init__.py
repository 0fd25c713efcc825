"""Mends a damaged directory."""
