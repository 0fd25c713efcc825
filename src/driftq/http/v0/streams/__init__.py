"""The handlers of long-lived connections: watch, job streams and WebSockets."""
