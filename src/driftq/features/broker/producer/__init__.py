"""Messages from producers: checks, routing hook and append."""
