"""Commands that run, check and measure a server."""
