"""Segments and checkpoints behind the memory."""
