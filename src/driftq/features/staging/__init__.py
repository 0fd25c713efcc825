"""Staged writes: parts that are durable but invisible until one commit publishes them together."""
