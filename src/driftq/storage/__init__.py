"""Bytes on disk: frames, WAL, segments, checkpoints. Numbers and bytes only; what a topic means is the engine's."""
