"""Imports the log of the Go broker, driftq-core."""
