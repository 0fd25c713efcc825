"""Peers above the engine; none imports another."""
