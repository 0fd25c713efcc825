"""`driftq demo`: starts its own server, plays an afternoon of agents in a few seconds, and runs the pipeline over
it.
"""
