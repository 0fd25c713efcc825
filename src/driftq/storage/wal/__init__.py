"""The write-ahead log (WAL): its files, the writer of each shard, and the reader that a start uses."""
