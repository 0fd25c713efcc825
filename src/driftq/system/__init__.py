"""The outside world as protocols, each with its real implementation: time, disk, randomness, event loop and threads.

No other package uses them directly, so a test can run a whole server, crash it, and repeat the run from a seed.
"""
