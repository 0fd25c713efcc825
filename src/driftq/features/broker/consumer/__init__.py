"""Messages out."""
