"""The HTTP server: transports (HTTP/1.1, HTTP/2, WebSocket, ASGI), the app, and the handlers of `/v0` and `/v1`."""
