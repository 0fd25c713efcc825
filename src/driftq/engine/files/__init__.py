"""Writes segment files and checkpoints for the topics in memory."""
