"""Bytes on disk: frames, WAL, segments, checkpoints. Only numbers and bytes; the engine defines what a topic means."""
