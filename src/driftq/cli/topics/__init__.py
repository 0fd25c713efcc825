"""Topics and records."""
