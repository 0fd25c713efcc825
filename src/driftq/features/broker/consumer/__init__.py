"""Deliveries to consumers: dispatch, settlement, deadlines and seek."""
