"""Job `lineage`."""
