"""Take, handle, settle."""
