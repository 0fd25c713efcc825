"""Routers: standing rules that copy records from one topic to another (http-v0 §11)."""
