"""Programs that `bench.client` and `bench.jobs` start, each in a process of its own: a client of DriftQ or of a peer.

Each prints one line of JSON with what it measured. Those of peers run in the environments that `make peers` made, so
they import nothing but the standard library, the peer, and `bench.programs.loops`.
"""
