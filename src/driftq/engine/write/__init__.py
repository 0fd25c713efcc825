"""Every change: log, then apply."""
