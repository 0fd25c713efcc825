"""Commands that move data: files, backups, data directories, the Spark pipeline."""
