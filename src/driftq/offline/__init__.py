"""Tools for a data directory that no server has open: look into it, check every byte of it, mend it."""
