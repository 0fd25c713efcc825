"""The outside world as protocols, and the real thing behind each: time, disk, entropy, loop and threads.

No other package touches any of them, so a whole server can be run, crashed and replayed from a seed.
"""
