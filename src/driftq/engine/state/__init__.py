"""The state of topics in memory."""
