"""Backups of a running server: consistent and incremental, with restore."""
