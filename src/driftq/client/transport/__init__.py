"""Plans, drivers, retries."""
