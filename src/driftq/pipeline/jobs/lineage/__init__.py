"""Job `lineage`: agent runs as tables."""
