"""The short write path and the long one give the same answers, byte for byte, and leave the same log and state.

Each script runs on two simulated servers with the same clock and the same request ids: one with the short path, one
without. Only `performance` may differ, and its length in `content-length`; both are masked.
"""

import re
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from driftq.http import request_id
from driftq.http.transport.h1 import reply_order
from driftq.testing import FaultyDisk, ServerRig
from tests.unit.http.v0.test_shortcut import PATH, Wire, post, single

WINDOW_MS = 60_000
Script = Callable[[Wire], None]

_PERFORMANCE = re.compile(rb'"performance":\{[^{}]*\}')
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)")


def keyed(key: str, data: str = "1", more: str = "", **fields: str) -> bytes:
    """A write of one record with an idempotency key; `fields` are JSON beside the records."""
    rest = "".join(f',"{name}":{value}' for name, value in fields.items())
    return f'{{"records":[{{"data":{data}{more}}}],"idempotency_key":"{key}"{rest}}}'.encode()


def send(wire: Wire, *bodies: bytes, query: str = "") -> None:
    """Send writes one after the other, each after the answer to the one before."""
    for body in bodies:
        wire.send(post(body, path=PATH + query))
        wire.rig.run()


def _masked(answers: bytes) -> list[bytes]:
    """Return each answer without `performance`, with the length that it has then."""
    masked = []
    while answers:
        head, _, answers = answers.partition(b"\r\n\r\n")
        (length,) = map(int, _LENGTH.findall(head))
        body, answers = answers[:length], answers[length:]
        body = _PERFORMANCE.sub(b'"performance":{}', body)
        masked.append(_LENGTH.sub(b"\r\ncontent-length: %d" % len(body), head) + b"\r\n\r\n" + body)
    return masked


def _outcome(script: Script, *, short: bool, **options: Any) -> tuple[list[bytes], list[Any], str, int]:
    with pytest.MonkeyPatch.context() as patch:
        next_number = count(16**11).__next__
        for module in (request_id, reply_order):
            patch.setattr(module, "next_number", next_number)
        return _run(script, short=short, **options)


def _run(script: Script, *, short: bool, **options: Any) -> tuple[list[bytes], list[Any], str, int]:
    rig = ServerRig(seed=7, short_writes=short, **options)
    rig.clock.advance(5)
    rig.ok("PUT", PATH, {"durability": "disk", "idempotency_window_ms": WINDOW_MS})
    wire = Wire(rig)
    send(wire, *[b'{"records":[{"data":%d}]}' % size for size in (1, 22, 333)])  # heads that are known from now on
    script(wire)
    rig.run()
    answers = _masked(b"".join(wire.transport.writes))
    records = rig.diff("t", include_tags=True)["records"]
    digest = rig.disk.state_digest()
    rig.close()
    return answers, records, digest, wire.taken


def run_both(script: Script, **options: Any) -> tuple[bytes, int]:
    """Run a script on both paths and compare everything; return the answers, and how often the short path was taken."""
    long = _outcome(script, short=False, **options)
    short = _outcome(script, short=True, **options)
    assert long[3] == 0
    assert short[0] == long[0]
    assert short[1] == long[1]
    assert short[2] == long[2], "the files of both differ"
    return b"".join(short[0]), short[3]


BODIES = [
    pytest.param(keyed("k"), id="key"),
    pytest.param(keyed("k", '{"a":[1,"x"]}', ',"tag":"a b"'), id="tag"),
    pytest.param(keyed("k", more=',"node":"n"'), id="node of a record"),
    pytest.param(keyed("k", node='"n"'), id="node of the write"),
    pytest.param(keyed("k", more=',"meta":{"a":"b"}'), id="meta"),
    pytest.param(keyed("k", create="false"), id="create"),
    pytest.param(keyed("k", disable_backpressure="true"), id="no backpressure"),
    pytest.param(keyed("k", config='{"ttl_ms":5}'), id="config"),
    pytest.param(keyed("ä€"), id="key not ASCII"),
    pytest.param(keyed("\\u006b"), id="key with an escape"),
    pytest.param(keyed("\\ud800"), id="key that is half a character"),
    pytest.param(keyed("k" * 256), id="longest key"),
    pytest.param(keyed("k" * 257), id="too long key"),
    pytest.param(keyed("ä" * 129), id="too long key, in bytes"),
    pytest.param(keyed(""), id="empty key"),
    pytest.param(b'{"records":[{"data":1}],"idempotency_key":null}', id="null key"),
    pytest.param(b'{"records":[{"data":1}],"idempotency_key":7}', id="key that is a number"),
    pytest.param(b'{"idempotency_key":"k","records":[{"data":1}]}', id="key first"),
    pytest.param(b'{"records":[{"data":1}],"idempotency_key":"j","idempotency_key":"k"}', id="two keys"),
    pytest.param(b'{"records":[{"data":1},{"data":2,"tag":"b"}],"idempotency_key":"k"}', id="two records"),
    pytest.param(b'{"records":[%b],"idempotency_key":"k"}' % b",".join([b'{"data":1}'] * 300), id="many records"),
    pytest.param(b'{"records":[],"idempotency_key":"k"}', id="no records"),
    pytest.param(keyed("k", '"a\\u0041\\n"'), id="escapes"),
]
SHORT = {"key", "tag", "create", "key not ASCII", "key with an escape", "longest key", "empty key", "null key"}
SHORT |= {"key first", "two keys", "two records", "many records"}


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("query", ["", "?return_seqs=false"])
@pytest.mark.parametrize("body", BODIES)
def test_first_and_repeated_writes(body: bytes, query: str, durability: str, request: pytest.FixtureRequest) -> None:
    def script(wire: Wire) -> None:
        wire.rig.ok("PUT", PATH, {"durability": durability, "idempotency_window_ms": WINDOW_MS})
        send(wire, body, query=query)  # its head is new
        wire.rig.clock.advance(WINDOW_MS + 1)
        taken = wire.taken
        send(wire, body, query=query)
        assert wire.taken - taken == (wire.rig.settings.short_writes and name in SHORT)
        send(wire, body, body, query=query)

    name = request.node.callspec.id.rsplit("-", 2)[0]
    run_both(script)


def test_a_key_is_a_repeat_within_its_window_and_no_longer() -> None:
    def script(wire: Wire) -> None:
        send(wire, keyed("a", "1"))
        wire.rig.clock.advance(WINDOW_MS)
        send(wire, keyed("b", "2"), keyed("a", "3"))
        wire.rig.clock.advance(1)
        send(wire, keyed("a", "4"), keyed("a", "5"), keyed("b", "6"))
        wire.rig.clock.advance(2 * WINDOW_MS)
        send(wire, keyed("b", "7"))

    answers, taken = run_both(script)
    assert re.findall(rb'"first_seq":(\d+).*?"deduped":(\w+)', answers)[3:] == [
        (b"4", b"false"),
        (b"5", b"false"),
        (b"4", b"true"),
        (b"6", b"false"),
        (b"6", b"true"),
        (b"5", b"true"),
        (b"7", b"false"),
    ]
    assert taken > 0


def test_a_repeat_with_other_records_gets_the_seqs_of_the_first() -> None:
    def script(wire: Wire) -> None:
        send(wire, keyed("a"), b'{"records":[{"data":1},{"data":2}],"idempotency_key":"a"}', keyed("a", '"other"'))
        send(wire, keyed("b"), single(), keyed("b", "2"))

    answers, _ = run_both(script)
    assert answers.count(b'"deduped":true') == 3


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_repeats_of_writes_under_way_get_their_answers(durability: str) -> None:
    def script(wire: Wire) -> None:
        wire.rig.ok("PUT", PATH, {"durability": durability, "idempotency_window_ms": WINDOW_MS})
        send(wire, keyed("x"), keyed("y"))
        wire.rig.runtime.hold("driftq-wal-0")
        wire.send(b"".join(map(post, (keyed("a"), keyed("b"), single(), keyed("a"), keyed("a", "7"), keyed("c")))))
        wire.rig.run()
        wire.send(post(keyed("b")) + post(keyed("d")))
        wire.rig.run()
        wire.rig.runtime.release("driftq-wal-0")

    answers, taken = run_both(script)
    assert answers.count(b'"deduped":true') == 3
    assert taken >= 5


def test_a_write_that_fails_fails_its_repeats_and_frees_its_key() -> None:
    broken = False

    def strikes(operation: str, path: str) -> bool:
        return broken and operation == "pwritev" and "/wal/" in path

    def script(wire: Wire) -> None:
        nonlocal broken
        wire.rig.ok("PUT", PATH, {"durability": "fsync", "idempotency_window_ms": WINDOW_MS})
        send(wire, keyed("x"), keyed("y"))
        broken = True
        wire.send(post(keyed("a")) + post(keyed("a")) + post(keyed("b")))
        wire.rig.run()
        broken = False
        send(wire, keyed("a"), keyed("b"), keyed("a"))

    answers, _ = run_both(script, wrap=lambda disk: FaultyDisk(disk, when=strikes))
    statuses = re.findall(rb"HTTP/1.1 (\d+)", answers)[5:]
    assert statuses[:3] != [b"200"] * 3
    assert statuses[3:] == [b"200"] * 3


@pytest.mark.parametrize(
    ("config", "limits"),
    [({"cap_records": 6, "discard": "reject"}, {}), ({}, {"total_bytes_max": 9}), ({"cap_records": 4}, {})],
)
def test_refusals_and_caps(config: dict[str, Any], limits: dict[str, int]) -> None:
    def script(wire: Wire) -> None:
        wire.rig.ok("PUT", PATH, {"durability": "disk", "idempotency_window_ms": WINDOW_MS, **config})
        send(wire, *(keyed(f"k{n}") for n in range(6)), keyed("k0"), keyed("k5"), keyed("k9"))

    run_both(script, limits=limits)


def test_a_topic_that_is_deleted_forgets_its_keys() -> None:
    def script(wire: Wire) -> None:
        send(wire, keyed("a"), keyed("b"))
        wire.rig.ok("DELETE", PATH)
        send(wire, keyed("a"), keyed("a"), keyed("b"))

    answers, _ = run_both(script)
    assert answers.count(b'"created":true') == 1
    assert answers.count(b'"deduped":true') == 1


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_key_of_the_short_path_is_known_after_a_restart(durability: str) -> None:
    rig = ServerRig()
    rig.ok("PUT", PATH, {"durability": durability, "idempotency_window_ms": WINDOW_MS})
    wire = Wire(rig)
    send(wire, keyed("a"), keyed("b"), keyed("c", more=',"tag":"t"'), keyed("d", more=',"tag":"t"'))
    assert wire.taken == 2
    rig.kill()
    for key, seq in (("b", 2), ("d", 4)):
        answer = rig.write("t", 9, idempotency_key=key)
        assert (answer["deduped"], answer["first_seq"]) == (True, seq)
    rig.close()


def test_the_switch_turns_the_short_path_off() -> None:
    rig = ServerRig(short_writes=False)
    rig.ok("PUT", PATH, {})
    wire = Wire(rig)
    send(wire, single(), single(), keyed("a"), keyed("b"))
    assert wire.taken == 0
    assert len(rig.diff("t")["records"]) == 4
    rig.close()
