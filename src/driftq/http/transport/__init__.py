"""Connections, HTTP/1, HTTP/2, WebSockets and ASGI."""
