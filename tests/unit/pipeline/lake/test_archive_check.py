"""`verify` says equal, or what differs."""

import datetime as dt
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from driftq.pipeline.lake.archive_check import ArchiveFinding, TopicExtent, verify
from driftq.pipeline.lake.delta_tables import Lake, LakeTable, WriterBatch
from driftq.pipeline.lake.lake_owner import claim
from driftq.pipeline.lake.row_sums import hashes, sum_of
from driftq.pipeline.lake.table_layout import RECORDS
from driftq.pipeline.lake.table_progress import Move


class FakeTopics:
    """A server with topics, each a list of seqs."""

    def __init__(self, **topics: tuple[TopicExtent, list[int]]) -> None:
        self._topics = topics

    def standing(self, topic: str) -> TopicExtent | None:
        found = self._topics.get(topic)
        return None if found is None else found[0]

    def pages(self, topic: str, first: int, last: int) -> Iterator[pa.Table]:
        seqs = [seq for seq in self._topics[topic][1] if first <= seq <= last]
        for at in range(0, len(seqs), 2):
            yield records(topic, seqs[at : at + 2])


def records(topic: str, seqs: list[int], *, epoch: int = 1, tag: str | None = None) -> pa.Table:
    count, at = len(seqs), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    none = [None] * count
    columns = [
        [topic] * count,
        [epoch] * count,
        seqs,
        [at] * count,
        none,
        [tag] * count,
        none,
        [str(seq) for seq in seqs],
    ]
    return pa.table([*columns, [at.date()] * count], RECORDS)


def fill(
    table: LakeTable, topic: str, seqs: list[int], *, epoch: int = 1, batch: int = 0, tag: str | None = None
) -> None:
    rows, mark = records(topic, seqs, epoch=epoch, tag=tag), table.mark(topic, epoch)
    move = Move(topic, epoch, mark, mark, max(mark, *seqs, 0))
    assert table.append(rows, WriterBatch(f"filler-{epoch}", batch), [move], {topic: sum_of(hashes(rows))})


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def one(findings: list[ArchiveFinding]) -> ArchiveFinding:
    (finding,) = findings
    return finding


def test_the_same_seqs_are_equal(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [3, 1, 2])
    found = one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 3), [1, 2, 3]))))
    assert found == ArchiveFinding("a", "equal", 3, 3, "1-3", "1-3", [])


def test_what_retention_took_from_the_topic_is_no_difference(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1, 2, 3, 4])
    assert one(verify(lake, FakeTopics(a=(TopicExtent(1, 3, 4), [3, 4])))).verdict == "equal"


def test_a_record_that_is_missing_is_named(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1, 3])
    found = one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 3), [1, 2, 3]))))
    assert found.differences == ["1 live records are not in the lake: seq 2"]


def test_a_row_that_is_there_twice_is_counted(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1, 2])
    fill(lake.topic("a"), "a", [2], batch=1)
    found = one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 2), [1, 2]))))
    assert found.differences == ["1 rows are in the lake more than once"]


def test_a_lake_that_is_behind_says_how_far(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1])
    found = one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 5), [1, 2, 3, 4, 5]))))
    assert found.differences == ["the lake is 4 records behind: seq 2-5"]


def test_a_record_deleted_since_is_told(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1, 2, 3])
    found = one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 3), [1, 3]))))
    assert found.differences == ["1 rows of the lake are no longer live (deleted since): seq 2"]


def test_rows_of_an_earlier_topic_of_the_same_name_are_left_alone(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1, 2, 3, 4, 5], epoch=1)
    fill(lake.topic("a"), "a", [1, 2], epoch=2)
    assert one(verify(lake, FakeTopics(a=(TopicExtent(2, 1, 2), [1, 2])))).verdict == "equal"


def test_topics_that_share_a_table_are_compared_one_by_one(lake: Lake) -> None:
    fill(lake.shared("all"), "a", [1, 2])
    fill(lake.shared("all"), "b", [1], batch=1)
    live = FakeTopics(a=(TopicExtent(1, 1, 2), [1, 2]), b=(TopicExtent(1, 1, 2), [1, 2]))
    assert [(found.topic, found.verdict) for found in verify(lake, live)] == [("a", "equal"), ("b", "differs")]


def test_a_topic_that_is_gone_differs(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1])
    assert one(verify(lake, FakeTopics())).differences == ["there is no such topic on the server"]


def test_a_topic_that_was_never_archived_differs(lake: Lake) -> None:
    found = one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 1), [1])), ["a"]))
    assert found.differences == ["the lake is 1 records behind: seq 1"]


class Evicting(FakeTopics):
    """Retention takes two records behind the first question."""

    def pages(self, topic: str, first: int, last: int) -> Iterator[pa.Table]:
        standing, seqs = self._topics[topic]
        self._topics[topic] = (standing._replace(earliest=first + 2, head=last + 2), [*seqs[2:], last + 1, last + 2])
        return super().pages(topic, first, last)


def test_what_retention_takes_while_it_is_compared_is_no_delete(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1, 2, 3, 4])
    found = one(verify(lake, Evicting(a=(TopicExtent(1, 1, 4), [1, 2, 3, 4]))))
    assert found == ArchiveFinding("a", "equal", 2, 2, "3-4", "3-4", [])


class Vanishing(FakeTopics):
    """A topic that is deleted behind the first question."""

    def pages(self, topic: str, first: int, last: int) -> Iterator[pa.Table]:
        found = list(super().pages(topic, first, last))
        del self._topics[topic]
        return iter(found)


def test_a_topic_that_is_deleted_while_it_is_compared_differs(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1])
    found = one(verify(lake, Vanishing(a=(TopicExtent(1, 1, 1), [1]))))
    assert found.differences == ["the topic was deleted during the comparison; verify again"]


def test_a_topic_of_another_server_differs_whatever_its_seqs_are(lake: Lake) -> None:
    claim(lake, "ours")
    fill(lake.topic("a"), "a", [1])
    assert one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 1, "ours"), [1])))).verdict == "equal"
    found = one(verify(lake, FakeTopics(a=(TopicExtent(1, 1, 1, "another"), [1]))))
    assert (found.verdict, found.lake_rows, found.live_rows) == ("differs", 1, 0)
    assert "this is server another" in found.differences[0]


FIVE = {"a": (TopicExtent(1, 1, 5), [1, 2, 3, 4, 5])}


def rewrite(table: LakeTable, change: Callable[[pa.Table], pa.Table]) -> None:
    """Replace the content of a table's only file, as damage or another program does."""
    (path,) = table.files()
    pq.write_table(change(pq.ParquetFile(path).read()), path)


def changed(name: str, values: list[object]) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), pa.array(values))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed("data", ["1", "2", "x", "4", "5"]), "seq 3"),
        (changed("tag", [None, "t", None, None, None]), "seq 2"),
        (changed("seq", [1, 3, 2, 4, 5]), "seq 2-3"),
        (changed("seq", [1, 2, 3, 4, 99]), "1 live records are not in the lake: seq 5"),
        (changed("seq", [1, 2, 3, 4, -5]), "seqs that no topic has: -5"),
        (changed("epoch", [1, 1, 1, 1, 8]), "1 counted rows of epoch 8, and 0 were written"),
        (lambda rows: rows.slice(1), "4 counted rows of epoch 1, and 5 were written"),
        (lambda rows: pa.concat_tables([rows, rows.slice(0, 1)]), "6 counted rows of epoch 1, and 5 were written"),
    ],
)
def test_a_change_of_a_file_is_found(lake: Lake, change: Callable[[pa.Table], pa.Table], said: str) -> None:
    fill(lake.topic("a"), "a", [1, 2, 3, 4, 5])
    rewrite(lake.topic("a"), change)
    found = one(verify(lake, FakeTopics(**FIVE)))
    assert found.verdict == "differs"
    assert re.search(said, "; ".join(found.differences))


def test_a_change_of_rows_that_only_the_lake_has_is_found(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1, 2, 3, 4, 5])
    live = FakeTopics(a=(TopicExtent(1, 5, 5), [5]))
    assert one(verify(lake, live)).verdict == "equal"
    rewrite(lake.topic("a"), changed("data", ["x", "2", "3", "4", "5"]))
    assert one(verify(lake, live)).differences == [
        "topics/a has other rows of epoch 1 than were written: their checksum differs"
    ]


def test_a_file_that_cannot_be_read_or_is_gone_is_found(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1, 2, 3, 4, 5])
    (path,) = lake.topic("a").files()
    Path(path).write_bytes(b"PAR1 not really PAR1")
    assert "topics/a has a file that cannot be read" in one(verify(lake, FakeTopics(**FIVE))).differences[0]
    Path(path).unlink()
    assert "topics/a has a file that cannot be read" in one(verify(lake, FakeTopics(**FIVE))).differences[0]


def test_a_table_that_was_emptied_differs(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1, 2, 3, 4, 5])
    DeltaTable(lake.topic("a").path).delete()
    assert one(verify(lake, FakeTopics(**FIVE))).differences == [
        "topics/a has 0 counted rows of epoch 1, and 5 were written",
        "5 live records are not in the lake: seq 1-5",
    ]


def test_a_table_that_is_gone_differs(lake: Lake) -> None:
    checkpoint = lake.checkpoint("archive-1")
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True)
    (checkpoint / "commits/0").write_text("v1")
    (checkpoint / "offsets/0").write_text('v1\n{}\n{"a": {"epoch": 1, "seq": 5, "began": 0}}')
    found = one(verify(lake, FakeTopics(**FIVE)))
    assert found.differences == [
        "no table has this topic, which was archived up to seq 5",
        "5 live records are not in the lake: seq 1-5",
    ]


def test_a_table_that_was_compacted_is_equal(lake: Lake) -> None:
    for batch in range(5):
        fill(lake.topic("a"), "a", [batch + 1], batch=batch)
    table = DeltaTable(lake.topic("a").path)
    table.optimize.compact()
    table.create_checkpoint()
    assert len(lake.topic("a").files()) == 1
    assert one(verify(lake, FakeTopics(**FIVE))).verdict == "equal"


def test_a_table_of_an_earlier_release_is_checked_above_its_mark(lake: Lake) -> None:
    table = lake.topic("a")
    old = [Transaction("driftq-seq:1:a", 3), Transaction("driftq-topic:a", 1)]
    DeltaTable.create(table.path, RECORDS, partition_by=["day"])
    properties = CommitProperties(app_transactions=old)
    write_deltalake(DeltaTable(table.path), records("a", [1, 2, 3]), mode="append", commit_properties=properties)
    fill(table, "a", [4, 5])
    assert table.counted("a", 1).since == 3
    assert one(verify(lake, FakeTopics(**FIVE))).verdict == "equal"


def test_deep_names_the_columns(lake: Lake) -> None:
    fill(lake.topic("a"), "a", [1, 2, 3, 4, 5])
    rewrite(lake.topic("a"), changed("data", ["1", "2", "x", "4", "5"]))
    assert "seq 3: data differ" in one(verify(lake, FakeTopics(**FIVE), deep=True)).differences
