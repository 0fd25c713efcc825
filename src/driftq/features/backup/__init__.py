"""Backups of a running server: consistent, incremental, and back."""
