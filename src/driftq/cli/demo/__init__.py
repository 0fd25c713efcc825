"""`driftq demo`: starts its own server, plays an afternoon of agents in seconds, and runs the pipeline over it."""
