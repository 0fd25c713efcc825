"""Messages in."""
