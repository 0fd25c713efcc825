"""The read path: pages of records, and lookups by seq, tag and time."""
