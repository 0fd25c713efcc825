"""HTTP/2: the connection, its exchanges and the sender."""
