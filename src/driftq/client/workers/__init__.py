"""Workers that take jobs or messages, run a handler, and settle."""
