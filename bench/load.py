"""What loads are made of, beside what `driftq bench` is made of too (`driftq.cli.server.load_generator`)."""

from driftq.cli.server.load_generator import Measure


def body(count: int, first: int, *, tags: bool = True) -> bytes:
    """The request of one write."""
    filling = b"x" * 85
    records = []
    for number in range(first, first + count):
        tag = b',"tag":"order-%d"' % number if tags else b""
        records.append(b'{"data":{"id":%d,"payload":"%b"}%b}' % (number, filling, tag))
    return b'{"records":[' + b",".join(records) + b"]}"


def redis_length(count: int) -> Measure:
    """So many bulk strings, each the id of an entry in two lines: known when they are there."""
    return lambda beginning: len(beginning) if beginning.count(b"\r\n") >= 2 * count else 0
