"""DriftQ: append-only topics, lease queues and an agent broker in one server, with a data pipeline on Spark."""

__version__ = "0.1.0"
