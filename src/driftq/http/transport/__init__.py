"""Connections and protocols."""
