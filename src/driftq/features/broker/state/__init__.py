"""The state of the broker: topics, groups, messages and their index."""
