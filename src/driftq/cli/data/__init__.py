"""Files, backups, directories, pipeline."""
