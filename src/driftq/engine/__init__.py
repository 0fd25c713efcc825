"""What a topic does: append, read, delete, retention, recovery. All state belongs to one event loop."""
