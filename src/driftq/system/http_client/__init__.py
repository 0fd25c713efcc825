"""An HTTP/1.1 client connection without I/O, and its blocking and asyncio drivers."""
