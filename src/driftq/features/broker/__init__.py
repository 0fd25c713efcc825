"""Messages for groups of consumers: the broker API (http-v1)."""
