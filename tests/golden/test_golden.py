"""Files of every released format version open for ever, and today's version still writes the same bytes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import json

from driftq.model.tombstone import Reason
from driftq.storage.blocks.block import Block
from driftq.storage.segments.block_index import decode_index, encode_index
from driftq.storage.segments.cold_file import ColdFile, encode_del, encode_parquet
from driftq.storage.segments.tag_index import TagIndex, tag_rows
from driftq.testing import ServerRig, SimDisk
from driftq.testing.engine_rig import EngineRig
from tests.golden import brokered, clocked, directory, leased, logged, routed, staged
from tests.golden.described import Described, Row, describe_all, describe_rows, encode
from tests.golden.write import FIRST_SEQ, FORMATS, HERE, TOPIC, index_of, segment_blocks, segment_frames


def versions(name: str) -> list[Path]:
    """The golden files of a format, by their description."""
    return sorted((HERE / name).glob("v*.json"))


def described(path: Path) -> list[Described]:
    return json.decode(path.read_bytes(), type=list[Described])


def newest(name: str) -> Path:
    return HERE / name / f"v{FORMATS[name][0]}.json"


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_golden_files_of_every_version(name: str) -> None:
    assert [path.stem for path in versions(name)] == [f"v{number}" for number in range(1, FORMATS[name][0] + 1)]


@pytest.mark.parametrize("path", versions("frame"), ids=lambda path: path.stem)
def test_frames_open(path: Path) -> None:
    assert [frame for _, frame in describe_all(path.with_suffix(".bin").read_bytes())] == described(path)


def test_frames_are_written_as_ever() -> None:
    path = newest("frame")
    assert b"".join(map(encode, described(path))) == path.with_suffix(".bin").read_bytes()


@pytest.mark.parametrize("path", versions("wal"), ids=lambda path: path.stem)
def test_wal_files_open(path: Path) -> None:
    """Version 1 has no salt and one head; version 2 has a salt, two copies of its head, and a boot id."""
    found = json.decode(json.encode(logged.picture(path.with_suffix(".log").read_bytes())))
    assert found == json.decode(path.read_bytes())


def test_wal_files_are_written_as_ever() -> None:
    assert logged.build(segment_frames()) == newest("wal").with_suffix(".log").read_bytes()


@pytest.mark.parametrize("path", versions("segment"), ids=lambda path: path.stem)
def test_segments_open(path: Path) -> None:
    content = path.with_suffix(".data").read_bytes()
    found = list(describe_all(content))
    assert [frame for _, frame in found] == described(path)
    index = decode_index(path.with_suffix(".idx").read_bytes())
    assert index is not None
    assert index.cells == index_of([Block.of(encoded) for encoded, _ in found]).cells
    for number, (encoded, _) in enumerate(found):
        offset, length = index.place(number)
        assert content[offset : offset + length] == encoded


def test_segments_are_written_as_ever() -> None:
    path = newest("segment")
    blocks = segment_blocks(described(path))
    assert b"".join(block.frame for block in blocks) == path.with_suffix(".data").read_bytes()
    assert encode_index(index_of(blocks)) == path.with_suffix(".idx").read_bytes()


@pytest.mark.parametrize("path", versions("tags"), ids=lambda path: path.stem)
def test_tag_indexes_open(path: Path) -> None:
    index = TagIndex.decode(path.with_suffix(".tags").read_bytes())
    assert index is not None
    pairs = list(tag_rows(segment_blocks(described(path)), FIRST_SEQ))
    assert len(index) == len(pairs)
    for tag, _ in pairs:
        rows = [row for name, row in pairs if name == tag]
        found, certain = index.exact(tag)
        assert list(found) == rows if certain else set(rows) <= set(found)
    assert set(index.prefix(b"user-").rows) == {row for name, row in pairs if name.startswith(b"user-")}


def test_tag_indexes_are_written_as_ever() -> None:
    path = newest("tags")
    index = TagIndex.build(tag_rows(segment_blocks(described(path)), FIRST_SEQ))
    assert index.encode() == path.with_suffix(".tags").read_bytes()


def cold_rows(parquet: bytes, flags: bytes) -> tuple[list[tuple[int, Row]], bytes]:
    """The rows of a cold segment with their seqs and every node spelled out, and its flags."""
    disk = SimDisk()
    disk.create("/cold/x.parquet").pwritev([parquet], 0)
    file = ColdFile.open(disk, "/cold/x.parquet", flags)
    assert file is not None
    assert file.topic_id == TOPIC
    found: list[tuple[int, Row]] = []
    for number, group in enumerate(file.groups):
        block = file.read_group(number)
        shared = None if block.batch_node is None else block.batch_node.decode()
        found += enumerate(_with_node(describe_rows(block), shared), group.first_seq)
    return found, file.flags()


def expected_rows(frames: list[Described]) -> tuple[list[tuple[int, Row]], bytes]:
    rows = [pair for frame in frames for pair in enumerate(_with_node(frame.rows, frame.batch_node), frame.seq)]
    return rows, b"".join(bytes.fromhex(frame.flags) for frame in frames)


def _with_node(rows: list[Row], shared: str | None) -> list[Row]:
    return [Row(row.ts, row.tag, row.node if shared is None else shared, row.meta, row.data) for row in rows]


@pytest.mark.parametrize("path", versions("cold"), ids=lambda path: path.stem)
def test_cold_segments_open(path: Path) -> None:
    parquet, flags = (path.with_suffix(suffix).read_bytes() for suffix in (".parquet", ".del"))
    assert cold_rows(parquet, flags) == expected_rows(described(path))


def test_cold_segments_are_written_to_the_same_effect() -> None:
    """Parquet bytes depend on the library's version, so they are compared by what they hold."""
    frames = described(newest("cold"))
    parquet = encode_parquet(segment_blocks(frames), topic_id=TOPIC)
    flags = encode_del(expected_rows(frames)[1], parquet)
    assert cold_rows(parquet, flags) == expected_rows(frames)


@pytest.mark.parametrize("path", versions("directory"), ids=lambda path: path.stem)
def test_a_data_directory_opens(path: Path) -> None:
    """A checkpoint, a WAL tail behind it, hot and cold segments, as an earlier version left them at a kill."""
    expected = json.decode(path.read_bytes(), type=dict[str, directory.Found])
    rig = EngineRig(directory.SETTINGS, disk=directory.loaded(path.with_suffix("")))
    assert directory.picture(rig) == expected
    rig.restart()
    assert {name: found.records for name, found in directory.picture(rig).items()} == {
        name: found.records for name, found in expected.items()
    }


@pytest.mark.parametrize("path", versions("drained"), ids=lambda path: path.stem)
def test_a_drained_log_opens_without_a_hole_and_a_checkpoint_knows_upper_bounds(path: Path) -> None:
    expected = json.decode(path.read_bytes(), type=dict[str, directory.Found])
    rig = EngineRig(directory.SETTINGS, disk=directory.loaded(path.with_suffix("")))
    assert directory.picture(rig) == expected
    (hole,) = rig.topic("t.lossy").holes.all
    assert (hole.first, hole.reason, hole.at_most) == (3, Reason.CRASH, True)
    assert rig.topic("t.disk").holes.all == []


@pytest.mark.parametrize("path", versions("spanned"), ids=lambda path: path.stem)
def test_a_log_with_spans_opens_and_puts_them_off(path: Path) -> None:
    expected = json.decode(path.read_bytes(), type=dict[str, directory.Found])
    rig = EngineRig(directory.SETTINGS, disk=directory.loaded(path.with_suffix("")))
    assert rig.engine.catalog.by_name["t.memory"].late
    assert directory.picture(rig) == expected


@pytest.mark.parametrize("path", versions("staged"), ids=lambda path: path.stem)
def test_a_data_directory_with_staged_parts_and_cursors_opens(path: Path) -> None:
    """Sections of a checkpoint, frames behind it, and a part that waits, as an earlier version left them at a kill."""
    expected = json.decode(path.read_bytes())
    assert staged.picture(staged.StagedRig(directory.loaded(path.with_suffix("")))) == expected


def test_staged_parts_are_written_as_ever() -> None:
    golden = newest("staged").with_suffix("") / "data/stage"
    rig = staged.build()
    names = rig.disk.names("/data/stage")
    assert names == sorted(path.name for path in golden.iterdir())
    for name in names:
        file = rig.disk.open(f"/data/stage/{name}")
        assert file.pread(file.size(), 0) == (golden / name).read_bytes()


@pytest.mark.parametrize("path", versions("leased"), ids=lambda path: path.stem)
def test_a_data_directory_with_leases_opens(path: Path) -> None:
    """Leases of a checkpoint and the frames behind it, as an earlier version left them at a kill."""
    expected = json.decode(path.read_bytes())
    found = leased.picture(leased.LeasedRig(directory.loaded(path.with_suffix(""))))
    assert json.decode(json.encode(found)) == expected


@pytest.mark.parametrize("path", versions("brokered"), ids=lambda path: path.stem)
def test_a_data_directory_of_the_broker_opens(path: Path) -> None:
    """Groups, outcomes and runs of a checkpoint and the frames behind it, as an earlier version left them at a kill."""
    expected = json.decode(path.read_bytes())
    rig = brokered.BrokeredRig(directory.loaded(path.with_suffix("")))
    found = json.decode(json.encode(brokered.picture(rig)))
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("path", versions("brokered"), ids=lambda path: path.stem)
def test_a_data_directory_whose_broker_topics_are_called_v1_gets_the_names_of_today(path: Path) -> None:
    """`v1:t` is free then: a topic of `/v0` may have it.

    row: F-NAMES-1
    """
    rig = brokered.BrokeredRig(directory.loaded(path.with_suffix("")))
    topics = set(json.decode(path.read_bytes())["topics"])
    names = rig.engine_rig.engine.catalog.names()
    assert names == sorted(f"@{topic}" for topic in topics)
    rig.engine_rig.put("v1:t")
    rig.restart()
    assert rig.engine_rig.engine.catalog.get("v1:t").id != rig.engine_rig.engine.catalog.get("@t").id


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("end", [ServerRig.crash, ServerRig.kill, ServerRig.restart], ids=lambda end: end.__name__)
@pytest.mark.parametrize("path", versions("brokered"), ids=lambda path: path.stem)
def test_an_ordinary_topic_with_the_old_name_of_a_broker_topic_costs_no_message(
    path: Path, end: Callable[[ServerRig], None], checkpoint: bool
) -> None:
    """The log still has the old name of both until a checkpoint is taken."""
    rig = ServerRig(disk=directory.loaded(path.with_suffix("")))
    for name in list(rig.server.engine.catalog.names()):
        rig.ok("PUT", f"/v0/topics/v1:{name[1:]}", {"durability": "fsync"})
        rig.write(f"v1:{name[1:]}", 1, 2)
    rig.ok("POST", "/v1/produce", {"topic": "t", "value": "new"})
    if checkpoint:
        rig.server.engine.checkpointer.run()
        rig.run()
    before = {topic.name: (topic.id, topic.head, topic.count) for topic in rig.server.engine.catalog.visible()}
    for _ in range(2):
        end(rig)
        after = {topic.name: (topic.id, topic.head, topic.count) for topic in rig.server.engine.catalog.visible()}
        assert after == before


@pytest.mark.parametrize("path", versions("routed"), ids=lambda path: path.stem)
def test_a_data_directory_of_routers_opens(path: Path) -> None:
    """Routers of a checkpoint and the frames behind it; copies that were never logged are made again as they were."""
    expected = json.decode(path.read_bytes())
    found = routed.picture(routed.RoutedRig(directory.loaded(path.with_suffix(""))))
    assert json.decode(json.encode(found)) == expected


@pytest.mark.parametrize("path", versions("clocked"), ids=lambda path: path.stem)
def test_a_data_directory_whose_clock_was_wrong_opens(path: Path) -> None:
    """Clock frames of a checkpoint and behind it: the age of every record is as it was."""
    expected = json.decode(path.read_bytes())
    found = clocked.picture(clocked.ClockedRig(directory.loaded(path.with_suffix(""))))
    assert json.decode(json.encode(found)) == expected
