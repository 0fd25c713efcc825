"""Staged writes: parts that wait, durable and invisible, until one commit publishes them together."""
