"""HTTP/1: the request parser and the ordered replies."""
