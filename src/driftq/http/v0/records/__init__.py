"""Write, read, delete records."""
