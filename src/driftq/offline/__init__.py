"""Tools for a data directory that no server has open: inspect it, verify every byte, repair it."""
