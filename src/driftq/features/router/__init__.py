"""Routers: rules that copy new records of one topic into another, until they are deleted (http-v0 §11)."""
