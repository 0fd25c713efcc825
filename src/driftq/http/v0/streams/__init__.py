"""Long-lived connections."""
