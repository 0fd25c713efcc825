"""Segment files of the hot and the cold tier: blocks of records, their indexes, and the process that writes them."""
