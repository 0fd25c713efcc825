"""The broker API (http-v1): messages for groups of consumers."""
