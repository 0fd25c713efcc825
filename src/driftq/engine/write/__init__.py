"""Changes of state: each is logged first and then applied."""
