"""The rig of a whole server: answers, streams and lives."""

import pytest

from driftq.http.answer import Sink, StreamAnswer
from driftq.http.reply import Reply
from driftq.system.runtime import Pending
from driftq.testing import KeptSink, ServerRig, settled


def test_the_rig_asks_and_tells_an_envelope_from_a_success() -> None:
    rig = ServerRig()
    assert rig.ok("GET", "/healthz")["status"] == "ok"
    assert rig.code("GET", "/v0/nope") == (404, "not_found")
    assert rig.ask("POST", "/healthz").status == 405


def test_a_request_carries_what_a_connection_would_give_it() -> None:
    rig = ServerRig()
    request = rig.request("PUT", "/v0/topics/a b?x=1", {"k": 1}, headers={"Accept": "*/*"}, key="secret")
    assert (request.method, request.path, request.query) == ("PUT", "/v0/topics/a%20b", "x=1")
    assert request.body == b'{"k":1}'
    assert request.header(b"content-type") == b"application/json"
    assert request.header(b"accept") == b"*/*"
    assert request.header(b"authorization") == b"Bearer secret"
    assert rig.request("GET", "/").header(b"content-type") is None


def test_the_rig_lives_again_on_the_same_disk() -> None:
    rig = ServerRig(limits={"topics_max": 3})
    assert rig.settings.limits.topics_max == 3
    for again in (rig.restart, rig.crash, rig.kill):
        again()
        assert rig.ok("GET", "/readyz")["status"] == "ready"


def test_an_answer_that_waits_has_no_reply_yet() -> None:
    pending: Pending[Reply] = Pending()
    assert settled(pending) is None
    pending.resolve(Reply(200))
    assert settled(pending) == Reply(200)


def test_a_kept_sink_keeps_until_its_end() -> None:
    sink = KeptSink()
    sink.write(b"ab")
    sink.send(b'{"op":"pong"}')
    assert (sink.taken(), sink.messages()) == (b"ab", [{"op": "pong"}])
    sink.close(1001)
    sink.write(b"c")
    sink.send(b"{}")
    assert (sink.taken(), sink.messages(), sink.ended, sink.code) == (b"", [], True, 1001)


class _Greeting:
    def opened(self, sink: Sink) -> None:
        sink.write(b"hello")

    def room(self) -> None:
        """Nothing."""

    def closed(self) -> None:
        """Nothing."""

    def goodbye(self) -> None:
        """Nothing."""


def test_a_stream_is_opened_on_a_sink_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ServerRig()
    monkeypatch.setattr(rig.app, "handle", lambda _: StreamAnswer(_Greeting()))
    _, sink = rig.stream("/v0/watch/x")
    assert sink.taken() == b"hello"
