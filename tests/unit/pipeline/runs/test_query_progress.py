"""How far queries are, from what Spark tells."""

from typing import Any, NamedTuple

import msgspec

from driftq.pipeline.runs.query_progress import Tally, lags_of, sum_up


class FakeTold(NamedTuple):
    json: str


class FakeQuery:
    """A query that tells of its batches."""

    def __init__(self) -> None:
        self.recentProgress: list[Any] = []

    def tell(self, batch: int, rows: int, end: int, latest: int) -> None:
        offsets = [msgspec.json.encode({"t": {"epoch": 1, "seq": seq}}).decode() for seq in (end, latest)]
        told = {
            "batchId": batch,
            "numInputRows": rows,
            "processedRowsPerSecond": 100.0,
            "sources": [{"endOffset": offsets[0], "latestOffset": offsets[1]}],
        }
        self.recentProgress.append(FakeTold(msgspec.json.encode(told).decode()))


def test_a_batch_is_counted_once_however_often_one_asks() -> None:
    query, tally = FakeQuery(), Tally()
    query.tell(0, 10, 10, 30)
    tally.take(query)
    tally.take(query)
    query.tell(1, 5, 15, 30)
    tally.take(query)
    assert (tally.rows, tally.batches, tally.lags) == (15, 2, {"t": 15})


def test_rows_that_are_told_by_the_sources_alone_are_counted_too() -> None:
    """As over Spark Connect."""
    query, tally = FakeQuery(), Tally()
    sources = [{"numInputRows": rows, "processedRowsPerSecond": 1.5 * rows} for rows in (10, 20)]
    query.recentProgress.append(FakeTold(msgspec.json.encode({"batchId": 0, "sources": sources}).decode()))
    tally.take(query)
    assert (tally.rows, tally.batches, tally.rate) == (30, 1, 45.0)


def test_a_run_that_ends_knows_its_total_and_one_that_goes_on_does_not() -> None:
    query, tally = FakeQuery(), Tally()
    query.tell(0, 10, 10, 30)
    tally.take(query)
    assert sum_up([tally], ends=True).total == 30
    assert sum_up([tally, tally], ends=False).topic_lags == {"t": 40}
    assert sum_up([tally], ends=False).total is None


def test_lag_counts_from_the_start_of_a_topic_that_was_made_again() -> None:
    assert lags_of({"t": {"epoch": 1, "seq": 50}}, {"t": {"epoch": 2, "seq": 7}}) == {"t": 7}
    assert lags_of({"t": {"epoch": 1, "seq": 50}}, {"t": {"epoch": 1, "seq": 57}}) == {"t": 7}
    assert lags_of({}, {"t": {"epoch": 1, "seq": 3}}) == {"t": 3}


def test_offsets_of_other_sources_have_no_lag() -> None:
    assert lags_of(None, "17") is None
    assert lags_of("not json", {"t": 5}) is None
