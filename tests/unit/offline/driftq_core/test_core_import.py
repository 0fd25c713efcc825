"""The log of the Go broker, brought into a broker: all of it, nothing twice, and a bad log changes nothing."""

from typing import Any

import pytest

from driftq.features.broker.protocols import KeyOwner
from driftq.offline.driftq_core.core_import import CoreImport, ImportReport
from driftq.offline.driftq_core.core_log import CoreLogError
from driftq.system.runtime import run
from tests.unit.features.broker.rig import RegisteredRig
from tests.unit.offline.driftq_core.test_core_log import line


class _Rig(RegisteredRig):
    def load(self, *lines: bytes) -> ImportReport:
        work = CoreImport(self.engine_rig.engine, self.broker, self.registry)
        return self.run(run(work.run(lambda: lines, self.told.append)))

    told: list[int]


@pytest.fixture
def rig() -> _Rig:
    rig = _Rig()
    rig.told = []
    return rig


def _got(rig: _Rig, topic: str = "t", group: str = "g", **options: Any) -> list[tuple[int, int, str]]:
    found = rig.consume(topic, group, credit=0, **options).take()
    return sorted((one.partition, one.offset, one.message.value) for one in found)


def _log() -> list[bytes]:
    """Two partitions with offsets of their own, a group that is behind in one of them, and one that has failed."""
    return [
        *(line(1, partition=n % 2, offset=n // 2, value=f"m{n}".encode(), idempotency_key=f"k{n}") for n in range(6)),
        line(2, group="g", partition=0, offset=1),
        line(2, group="g", partition=1, offset=0),
        line(4, group="g", partition=0, offset=1, last_error="done since", attempts=1),
        line(4, group="g", partition=1, offset=1, last_error="boom", attempts=2),
        line(
            5, group="g", idempotency_key="k5", idempotency_scope="consume", idempotency_status="COMMITTED", result=b"R"
        ),
        line(3, "empty", partitions=4),
    ]


@pytest.mark.parametrize("life", ["restart", "crash"])
def test_everything_is_there_and_groups_go_on_where_they_were(rig: _Rig, life: str) -> None:
    lines = _log()
    assert rig.load(*lines) == ImportReport(topics=2, messages=6, groups=1, failures=1, outcomes=1)
    assert rig.told[-1] == sum(map(len, lines[:6]))
    rig.restart() if life == "restart" else rig.crash()
    assert (rig.broker.partitions("t"), rig.broker.partitions("empty")) == (2, 4)
    consumer = rig.consume(credit=0)
    got = {found.offset: found for found in consumer.take()}
    # 0 and 2 are done, so is 1; 5 is skipped, for its key is committed.
    assert sorted(got) == [3, 4]
    assert (got[3].attempts, got[3].last_error, got[4].attempts) == (3, "boom", 1)
    assert _got(rig, group="new") == [(n % 2, n, f"m{n}") for n in (0, 2, 4, 1, 3, 5)]
    entry = rig.registry.entry(KeyOwner("", "t", "g", "k5"))
    assert entry is not None
    assert entry.result == b"R"


def test_an_outcome_whose_window_is_over_hides_only_messages_that_are_open(rig: _Rig) -> None:
    now = rig.engine_rig.engine.time.now()
    ended = {"group": "g", "idempotency_scope": "consume", "idempotency_status": "COMMITTED"}
    keys = ("old and done", "old and open", "young")
    loaded = rig.load(
        *(line(1, offset=n, value=b"v", idempotency_key=key) for n, key in enumerate(keys)),
        line(2, group="g", offset=0),
        *(line(5, idempotency_key=key, updated_at=now - 600_000, **ended) for key in keys[:2]),
        line(5, idempotency_key=keys[2], updated_at=now - 1000, **ended),
    )
    assert loaded.outcomes == 2
    for key in keys:
        rig.produce(key, idempotency_key=key)
    rig.crash()
    assert _got(rig) == [(0, 3, "old and done"), (0, 4, "old and open")]


def test_an_offset_record_says_that_all_below_is_done(rig: _Rig) -> None:
    rig.load(*(line(1, offset=n, value=b"v") for n in range(5)), line(2, group="g", offset=3))
    assert _got(rig) == [(0, 4, "v")]


def test_more_messages_than_a_batch_keep_their_order(rig: _Rig) -> None:
    rig.load(*(line(1, f"t{n % 2}", offset=n // 2, value=str(n).encode()) for n in range(1400)))
    assert rig.broker.topics() == ["t0", "t1"]
    first = [found.message.value for found in rig.consume("t0", credit=0).take()]
    assert first == [str(2 * n) for n in range(64)], "as many as may be open"


def test_imported_keys_are_free_for_producers(rig: _Rig) -> None:
    rig.load(line(1, value=b"old", idempotency_key="k"))
    (produced,) = rig.produce("new", idempotency_key="k")
    assert not produced.duplicate


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([line(1, value=b"v"), b"nonsense\n"], "line 2"),
        ([line(1, "there", value=b"v")], "already exists"),
        ([line(1, "a\x01b", value=b"v")], "invalid name"),
        ([line(1, partition=70_000, value=b"v")], "70001 partitions"),
    ],
)
def test_a_log_that_is_refused_changes_nothing(rig: _Rig, lines: list[bytes], why: str) -> None:
    rig.create("there")
    with pytest.raises(CoreLogError, match=why):
        rig.load(line(1, "fine", value=b"v"), *lines) if "line" not in why else rig.load(*lines)
    assert rig.broker.topics() == ["there"]


def test_a_log_that_broke_off_gives_what_it_has(rig: _Rig) -> None:
    whole = line(1, value=b"v")
    assert rig.load(whole, whole[:-5]).messages == 1
    assert rig.load().messages == 0
