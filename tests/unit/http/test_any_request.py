"""Whatever is asked is answered, with an envelope where it is refused, and never with 500: every route there is."""

from functools import cache
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from driftq.http.answer import StreamAnswer, Upgrade
from driftq.http.routes import ANY
from driftq.testing import ServerRig, decoded_reply, settled

WAIT_MS = 40_000


@cache
def rig() -> ServerRig:
    rig = ServerRig()
    rig.ok("PUT", "/v0/topics/q", {"type": "queue"})
    rig.write("t", 1)
    rig.write("q", 1)
    return rig


def paths() -> list[tuple[str, str]]:
    """Every route, as a method and a path with its colons in it."""
    table = rig().app._table
    fixed = [(method, path) for path, routes in table._fixed.items() for method in routes]
    shaped = [
        (method, "/".join(shape)) for shapes in table._shapes.values() for shape, routes in shapes for method in routes
    ]
    return sorted(fixed + shaped)


SCALARS = st.none() | st.booleans() | st.integers(-5, 1 << 65) | st.floats(allow_nan=False) | st.text(max_size=6)
NAMES = st.sampled_from(["t", "q", "absent", "-", "a>b", "x" * 256, "%ff", "%00", "..", "a%2Fb", "wid_x", "%", "é"])
WORDS = st.sampled_from(["t", "q", "w", "lease_1", "lease_zz", "tag", "Eq", "Glob", "a*", "fsync", "queue", ""])
VALUES = st.recursive(
    SCALARS | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | WORDS, inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    [
        "records",
        "node",
        "seqs",
        "lease_ids",
        "lease_ms",
        "delay_ms",
        "max",
        "topics",
        "from_seq",
        "from_ts",
        "limit",
        "match",
        "before_seq",
        "source",
        "dest",
        "filter",
        "guarantee",
        "seq",
        "epoch",
        "rewind",
        "meta",
        "writer",
        "tail",
        "batch",
        "parts",
        "type",
        "ttl_ms",
        "config",
        "idempotency_key",
        "create",
        "heartbeat_ms",
        "consistency",
        "zz",
    ]
)
PLAUSIBLE: st.SearchStrategy[Any] = st.one_of(
    VALUES,
    st.just([{"data": 1, "tag": "x"}]),
    st.just([1]),
    st.just({"t": {}}),
    st.just([{"part": 0, "attempt": 0, "chunks": 1}]),
)
BODIES = st.dictionaries(FIELDS, PLAUSIBLE, max_size=5)
ARGUMENTS = st.sampled_from(
    [
        "touch",
        "prefix",
        "page_size",
        "cursor",
        "if_empty",
        "node",
        "max",
        "lease_ms",
        "writer",
        "batch",
        "part",
        "lenient",
        "attempt",
        "chunk",
        "wait_synced",
        "return_seqs",
        "create",
        "token",
        "source",
        "zz",
    ]
)
QUERIES = st.dictionaries(
    ARGUMENTS, st.sampled_from(["", "1", "true", "-1", "x", "%ff", "9" * 30, "w", "YQ"]), max_size=4
)
ACCEPTS = st.sampled_from(["*/*", "text/event-stream", "application/vnd.apache.arrow.stream", "application/json"])
TYPES = st.sampled_from(["application/json", "application/vnd.apache.arrow.stream", "text/plain"])


@given(st.data())
def test_no_request_makes_the_server_fail(data: st.DataObject) -> None:
    server = rig()
    method, path = data.draw(st.sampled_from(paths()))
    parts = [data.draw(NAMES) if part == ANY else part for part in path.split("/")]
    query = "&".join(f"{name}={value}" for name, value in data.draw(QUERIES).items())
    try:
        raw = json.encode(data.draw(BODIES)) if method in ("POST", "PUT", "PATCH") else b""
    except UnicodeEncodeError:
        raw = b"{"
    headers = {"accept": data.draw(ACCEPTS), "content-type": data.draw(st.just("application/json") | TYPES)}
    answer = server.send(method, f"{'/'.join(parts)}?{query}", raw=raw, headers=headers)
    server.run()
    if isinstance(answer, StreamAnswer | Upgrade):
        answer.source.closed()
        return
    if settled(answer) is None:
        server.advance(WAIT_MS)
    reply = settled(answer)
    assert reply is not None, "an answer that never comes"
    assert reply.status < 500, (method, path, query, raw, reply)
    if reply.status >= 400:
        body = decoded_reply(reply).body
        assert set(body) == {"error"}
        assert {"code", "message"} <= set(body["error"]) <= {"code", "message", "detail"}
