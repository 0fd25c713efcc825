"""The way out of a connection: when bytes leave, and in which order."""

from driftq.http.transport.outbox import Outbox
from driftq.testing import ManualClock, ManualRuntime
from tests.unit.http.wire import Transport


def outbox() -> tuple[Outbox, Transport, ManualRuntime]:
    transport, runtime = Transport(), ManualRuntime(ManualClock())
    return Outbox(transport, runtime, lambda: None), transport, runtime


def test_what_is_put_leaves_together_at_the_end_of_the_turn() -> None:
    box, transport, runtime = outbox()
    box.put(b"a")
    box.put(b"b")
    assert transport.writes == []
    runtime.run_loop_only()
    assert transport.writes == [b"ab"]


def test_what_is_pushed_leaves_at_once_or_behind_what_was_put_before() -> None:
    box, transport, runtime = outbox()
    box.push(b"a", b"b")
    assert transport.writes == [b"ab"]
    box.put(b"c")
    box.push(b"d")
    assert transport.writes == [b"ab"]
    runtime.run_loop_only()
    assert transport.writes == [b"ab", b"cd"]


def test_once_the_peer_is_gone_nothing_leaves() -> None:
    box, transport, runtime = outbox()
    box.drop()
    box.push(b"a")
    box.put(b"b")
    runtime.run_loop_only()
    assert transport.writes == []
