"""Run, check and measure a server."""
