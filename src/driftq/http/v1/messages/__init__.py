"""The handlers that produce, consume and settle messages."""
