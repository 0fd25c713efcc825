"""What the broker remembers."""
