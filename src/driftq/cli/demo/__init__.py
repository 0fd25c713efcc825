"""`driftq demo`: a server of its own, an afternoon of agents in a few seconds, and the data pipeline over it."""
