"""Import from the Go broker."""
