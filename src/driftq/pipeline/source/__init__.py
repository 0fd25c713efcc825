"""Reads topics as DataFrames and streams."""
