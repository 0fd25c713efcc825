"""The handlers of the broker API `/v1` (http-v1)."""
