"""Rebuilds the state in memory from checkpoint, segments and log at start."""
