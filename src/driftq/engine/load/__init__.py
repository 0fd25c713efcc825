"""Limits, pressure and fairness."""
