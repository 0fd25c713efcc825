"""Redrive jobs over a broker of lists: what is matched, what a move leaves behind, pace, cancelling, failures."""

from itertools import pairwise
from typing import Any

import pytest
from msgspec import json

from driftq.errors import InternalError, InvalidRequestError, NotFoundError, ShuttingDownError, ThrottledError
from driftq.features.broker.protocols import Produced
from driftq.features.broker.redrive import AUDIT, Filter, Redriver, RunningRedrive, WaitingLetter, redriven
from driftq.model.message import DlqNote, Envelope, Message, RetryPolicy, Routing
from driftq.system.runtime import Pending
from driftq.testing import ManualClock, ManualRuntime, SeededEntropy


def _letter(**fields: Any) -> Message:
    noted = {"group": "g", "last_error": "boom", "routed_at_ms": 100, "original_partition": 0} | {
        name: fields.pop(name) for name in list(fields) if name in ("group", "last_error", "routed_at_ms")
    }
    note = DlqNote(original_topic="t", original_offset=0, attempts=1, **noted)  # type: ignore[arg-type]
    return Message("v", fields.pop("key", ""), Envelope(dlq=note, **fields))


class _Broker:
    def __init__(self, *letters: Message) -> None:
        self.stored: dict[str, list[tuple[int | None, Message]]] = {
            "t": [],
            "dlq.t": [(0, letter) for letter in letters],
        }
        self.retired: set[tuple[str, int]] = set()
        self.error: Exception | None = None
        self.slow = False
        self._reads: list[tuple[Pending[Any], Any]] = []

    def partitions(self, topic: str) -> int:
        if topic not in self.stored:
            raise InvalidRequestError("topic does not exist")
        return 3

    def has(self, topic: str) -> bool:
        return topic in self.stored

    def read(self, topic: str, offset: int, limit: int) -> Pending[tuple[list[WaitingLetter], int | None]]:
        found = list(enumerate(self.stored[topic]))[offset : offset + limit]
        page = [WaitingLetter(0, at, message) for at, (_, message) in found if (topic, at) not in self.retired]
        further = offset + limit if offset + limit < len(self.stored[topic]) else None
        if self.slow:
            self._reads.append((Pending(), (page, further)))
            return self._reads[-1][0]
        return _settled((page, further))

    def go_on(self) -> None:
        """What a slow one was asked so far is answered."""
        reads, self._reads = self._reads, []
        for pending, answer in reads:
            pending.resolve(answer)

    def deposit(self, topic: str, message: Message, *, partition: int | None = None) -> Pending[Produced]:
        if self.error is not None and topic == "t":
            raise self.error
        self.stored.setdefault(topic, []).append((partition, message))
        return _settled(Produced(topic, partition or 0, len(self.stored[topic]) - 1, 5))

    def retire(self, topic: str, letter: WaitingLetter) -> Pending[None]:
        self.retired.add((topic, letter.offset))
        return _settled(None)


def _settled(value: Any) -> Pending[Any]:
    pending: Pending[Any] = Pending()
    pending.resolve(value)
    return pending


class _World:
    def __init__(self, *letters: Message) -> None:
        self.broker = _Broker(*letters)
        self.clock = ManualClock()
        self.runtime = ManualRuntime(self.clock)
        self.redriver = Redriver(self.broker, self.runtime, SeededEntropy(1), self.clock.wall_ms, self.clock.wall_ms)

    def ask(self, wanted: Filter | None = None, **options: Any) -> Any:
        asked = self.redriver.ask("t", wanted or Filter(), **options)
        self.runtime.run_until_idle()
        return asked.result()

    def job(self, **options: Any) -> RunningRedrive:
        job = self.ask(**options)
        assert isinstance(job, RunningRedrive)
        return job

    @property
    def moved(self) -> list[Message]:
        return [message for _, message in self.broker.stored["t"]]


def test_a_letter_comes_back_as_it_was_and_is_retired_and_audited() -> None:
    policy = RetryPolicy(3, 10)
    world = _World(_letter(key="k", run_id="r", redrive_policy=policy))
    job = world.job()
    assert (job.state, job.matched, job.moved, job.failed) == ("done", 1, 1, 0)
    (message,) = world.moved
    assert message == Message("v", "k", Envelope(run_id="r", retry_policy=policy), Routing(meta={"redriven": job.id}))
    assert world.broker.retired == {("dlq.t", 0)}
    ((_, audited),) = world.broker.stored[AUDIT]
    record = json.decode(audited.value)
    assert (record["job_id"], record["topic"], record["dlq_topic"], record["dlq_offset"]) == (job.id, "t", "dlq.t", 0)
    assert world.ask(dry_run=True) == 0


def test_a_letter_without_key_goes_to_its_old_partition_and_one_with_a_key_to_that_of_the_key() -> None:
    world = _World(_letter(), _letter(key="k"))
    world.job()
    assert [partition for partition, _ in world.broker.stored["t"]] == [0, None]


def test_routing_and_label_stay() -> None:
    letter = Message("v", envelope=_letter().envelope, routing=Routing("label", {"a": "b"}))
    assert redriven(letter, "j") == Message("v", routing=Routing("label", {"a": "b", "redriven": "j"}))


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        ({}, 3),
        ({"tenant_id": "ta"}, 2),
        ({"reason_contains": "upstream"}, 1),
        ({"run_id": "r"}, 1),
        ({"tenant_id": "tb", "reason_contains": "upstream"}, 0),
        ({"before_ms": 100}, 0),
        ({"before_ms": 101}, 2),
        ({"after_ms": 101}, 1),
    ],
)
def test_a_filter_takes_what_it_names(wanted: dict[str, Any], count: int) -> None:
    world = _World(
        _letter(tenant_id="ta", last_error="timeout of the upstream"),
        _letter(tenant_id="ta", run_id="r"),
        _letter(tenant_id="tb", routed_at_ms=200, group="h"),
    )
    assert world.ask(Filter(**wanted), dry_run=True) == count
    assert world.moved == []


def test_a_group_and_a_limit_narrow_it_down() -> None:
    world = _World(*[_letter(group=group) for group in "ghggh"])
    assert world.ask(group="h", dry_run=True) == 2
    assert world.ask(limit=3, dry_run=True) == 3
    assert world.job(limit=2).moved == 2
    assert world.ask(dry_run=True) == 3


def test_more_letters_than_a_page_are_found() -> None:
    world = _World(*[_letter()] * 600)
    assert world.ask(dry_run=True) == 600
    assert world.job().moved == 600


def test_looking_for_letters_lets_others_in_between() -> None:
    world = _World(*[_letter()] * 600)
    asked = world.redriver.ask("t", Filter(), dry_run=True)
    seen: list[bool] = []
    world.runtime.soon(lambda: seen.append(asked.settled))
    world.runtime.run_until_idle()
    assert (seen, asked.result()) == ([False], 600)


def test_a_rate_is_kept_and_a_cancelled_job_moves_no_more() -> None:
    world = _World(*[_letter()] * 6)
    job = world.job(rate_per_s=2)
    assert (job.moved, job.rate) == (1, 2)
    world.runtime.advance(499)
    assert job.moved == 1
    world.runtime.advance(501)
    assert job.moved == 3
    assert world.redriver.cancel(job.id).state == "cancelled"
    assert world.ask(dry_run=True) == 3, "what it had in hand is free again at once"
    world.runtime.advance(5000)
    assert (world.redriver.job(job.id).moved, len(world.moved)) == (3, 3)


@pytest.mark.parametrize(("rate", "after_ms", "moved"), [(3000, 10, 31), (0.4, 10_000, 5), (1e-320, 1 << 40, 1)])
def test_any_rate_is_kept(rate: float, after_ms: int, moved: int) -> None:
    world = _World(*[_letter()] * 100)
    job = world.job(rate_per_s=rate)
    world.runtime.advance(after_ms)
    assert (job.state, job.moved) == ("running", moved)
    world.redriver.cancel(job.id)
    assert world.ask(dry_run=True) == 100 - moved


def test_two_jobs_never_have_the_same_letter() -> None:
    world = _World(*[_letter()] * 4)
    first = world.job(rate_per_s=1, limit=3)
    second = world.job()
    world.runtime.advance(5000)
    assert (first.moved, second.matched, second.moved, len(world.moved)) == (3, 1, 1, 4)


def test_nor_have_two_that_were_asked_for_at_the_same_time() -> None:
    world = _World(*[_letter()] * 300)
    world.broker.slow = True
    asked = [world.redriver.ask("t", Filter(), rate_per_s=1) for _ in range(2)]
    for _ in range(2):
        world.broker.go_on()
        world.runtime.run_until_idle()
    first, second = (one.result() for one in asked)
    assert isinstance(first, RunningRedrive)
    assert isinstance(second, RunningRedrive)
    assert (first.matched, second.matched) == (300, 0)


def test_a_move_that_fails_is_counted_and_the_letter_stays() -> None:
    world = _World(_letter(), _letter())
    world.broker.error = InternalError("no")
    job = world.job()
    assert (job.state, job.moved, job.failed) == ("done", 0, 2)
    world.broker.error = None
    assert world.job().moved == 2


def test_a_server_that_stops_ends_the_job() -> None:
    world = _World(_letter(), _letter())
    world.broker.error = ShuttingDownError("bye")
    job = world.job()
    assert (job.state, job.moved, world.broker.retired) == ("failed", 0, set())


def test_what_cannot_be_meant_is_refused() -> None:
    world = _World()
    with pytest.raises(InvalidRequestError, match="topic does not exist"):
        world.redriver.ask("nowhere", Filter())
    for limit, rate, what in (
        (0, None, "limit is 0"),
        (-1, None, "limit is -1"),
        (None, 0.0, "rate_per_s is 0.0"),
        (None, -1.0, "rate_per_s is -1.0"),
    ):
        with pytest.raises(InvalidRequestError, match=f"^{what}; it must be above 0$"):
            world.ask(limit=limit, rate_per_s=rate)
    for call in (world.redriver.job, world.redriver.cancel):
        with pytest.raises(NotFoundError):
            call("nobody")
    del world.broker.stored["dlq.t"]
    assert world.ask(dry_run=True) == 0
    assert world.job().state == "done"


def test_so_many_jobs_run_at_one_time_and_so_many_are_remembered() -> None:
    world = _World(*[_letter()] * 40)
    running = [world.job(rate_per_s=0.001, limit=2) for _ in range(16)]
    with pytest.raises(ThrottledError):
        world.ask()
    assert world.ask(dry_run=True) == 8
    for job in running:
        world.redriver.cancel(job.id)
    ended = [world.job() for _ in range(1100)]
    assert world.redriver.job(ended[-1].id) is ended[-1]
    with pytest.raises(NotFoundError):
        world.redriver.job(running[0].id)


@pytest.mark.parametrize("error", [None, InternalError("full")])
def test_a_job_that_waits_for_nothing_lets_others_in_between(error: Exception | None) -> None:
    world = _World(*[_letter() for _ in range(200)])
    world.broker.error = error
    job = world.redriver.ask("t", Filter()).result()
    assert isinstance(job, RunningRedrive)
    seen = [0, job.moved + job.failed]
    while job.state == "running":
        world.runtime.turn()
        seen.append(job.moved + job.failed)
    assert seen[-1] == 200
    assert max(after - before for before, after in pairwise(seen)) <= 32


def test_a_job_that_fails_as_nobody_expected_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    world = _World(_letter(), _letter())
    world.broker.error = RuntimeError("boom")
    assert world.job().state == "failed"
    assert [record.exc_info is not None for record in caplog.records] == [True]
    assert world.ask(dry_run=True) == 2
