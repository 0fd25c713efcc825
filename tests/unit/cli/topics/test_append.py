"""Lines in, writes out: every line in one group, whole, in order, with its number."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json

from driftq.cli.topics.append import Appending, LineGroups, is_ready, read_piece
from driftq.client import Response, Topic
from tests.unit.client.script import calls, refused


@given(st.binary().map(lambda text: text.replace(b"\r", b"\n")), st.integers(1, 5), st.integers(1, 7))
def test_groups_are_the_lines_whatever_pieces_they_come_in(text: bytes, batch: int, size: int) -> None:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    made = LineGroups(batch)
    groups = [group for piece in [*pieces, b""] for group in made.feed(piece)]
    assert b"".join(group.text for group in groups) == text
    number = 1
    for group in groups:
        assert group.first == number
        assert 0 < len(group.text.splitlines()) <= batch
        number += group.text.count(b"\n")
    assert all(group.text.endswith(b"\n") for group in groups[:-1])


def test_what_comes_slowly_is_not_waited_for() -> None:
    source, sink = os.pipe()
    try:
        assert not is_ready(source)
        os.write(sink, b"1\n")
        assert read_piece(source) == b"1\n"
        os.write(sink, b"2\n")
        os.close(sink)
        assert [read_piece(source), read_piece(source)] == [b"2\n", b""]
    finally:
        os.close(source)


class _Server:
    """Takes writes, and refuses those with a number it does not like."""

    def __init__(self, disliked: int | None = None) -> None:
        self.stored: list[Any] = []
        self.keys: list[str] = []
        self._disliked = disliked

    def run(self, plan: Any) -> Any:
        """Perform a plan, as the driver of a client does."""
        request = plan.send(None)
        try:
            plan.send(self._answer(request.content))
        except StopIteration as end:
            return end.value
        raise AssertionError("a write is one request")

    def _answer(self, content: bytes) -> Response:
        body = json.decode(content)
        data = [record["data"] for record in body["records"]]
        if self._disliked in data:
            return refused(400, "invalid_request")
        first = len(self.stored) + 1
        self.stored += data
        self.keys.append(body["idempotency_key"])
        answer = {"topic": "t", "first_seq": first, "last_seq": len(self.stored), "head_seq": len(self.stored)}
        answer |= {"count": len(data), "created": False, "deduped": False, "synced_seq": 0}
        return Response(200, {}, json.encode(answer | {"performance": {"server_total_ms": 0.1}}))


async def append(server: _Server, text: bytes, *, skip_bad: bool = False) -> Appending:
    source, sink = os.pipe()
    os.write(sink, text)
    os.close(sink)
    try:
        with Topic("t", calls(), server).producer() as out:
            job = Appending(out, None, None, create=None, skip_bad=skip_bad)
            await job.run(source, 4, lambda _: None)
    finally:
        os.close(source)
    return job


@pytest.fixture
def run() -> Callable[..., Appending]:
    import asyncio

    return lambda *args, **kwargs: asyncio.run(append(*args, **kwargs))


def test_every_write_has_a_key_of_its_own(run: Callable[..., Appending]) -> None:
    server = _Server()
    job = run(server, b"".join(b"%d\n" % number for number in range(10)))
    assert server.stored == list(range(10))
    assert len(set(server.keys)) == 3
    assert (job.records, job.bad_lines, job.failure) == (10, 0, None)
    assert job.report("t", 2.0)["records_per_s"] == 5


@pytest.mark.parametrize("bad", range(10))
def test_a_refused_line_is_found_and_all_before_it_are_written(bad: int, run: Callable[..., Appending]) -> None:
    server = _Server(bad)
    job = run(server, b"".join(b"%d\n" % number for number in range(10)))
    assert server.stored == list(range(bad))
    assert job.failure is not None
    assert job.failure.startswith(f"line {bad + 1} was refused: no")


def test_of_two_bad_lines_the_first_is_told(run: Callable[..., Appending]) -> None:
    server = _Server(1)
    job = run(server, b"0\n1\n2\n{bad\n4\n")
    assert server.stored == [0]
    assert job.failure is not None
    assert job.failure.startswith("line 2 was refused")


def test_bad_lines_are_skipped_on_request(run: Callable[..., Appending], capsys: pytest.CaptureFixture[str]) -> None:
    server = _Server(1)
    job = run(server, b"0\n1\n2\n{bad\n\n5\r\n", skip_bad=True)
    assert server.stored == [0, 2, 5]
    assert (job.bad_lines, job.failure) == (2, None)
    assert [line.split()[1] for line in capsys.readouterr().err.splitlines()] == ["4", "2"]
