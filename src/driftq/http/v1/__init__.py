"""The broker API on the wire (http-v1)."""
