"""Topics in memory."""
