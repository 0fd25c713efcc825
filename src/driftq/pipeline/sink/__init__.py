"""Writes DataFrames and streams into topics."""
