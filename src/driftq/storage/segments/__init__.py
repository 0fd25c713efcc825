"""Sealed and active segment files."""
