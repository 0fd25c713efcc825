"""The handlers that write, read and delete records."""
