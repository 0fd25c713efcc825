"""`driftq repair --accept-loss`: make a hole where an operator knows that a file is lost for good.

    unavailable → (the operator accepts it) → a record of who and when, durable → a checkpoint with the hole → given up

A server never does this by itself, because a failed call does not prove that records are lost. The newest checkpoint
is written again with the hole: without the segment, or with its unreadable blocks marked as gone. What is left of the
files moves to `lost/` at the next start.

Invariants
- A range with readable records is refused: a hole never removes a record that exists. So is a cold directory that is
  not mounted.
- Blocks and segments are accepted whole: a range that cuts one is refused, and the error names the exact ranges.
- The record is durable before the checkpoint. A crash between the two leaves a record of a loss that did not happen;
  run the command again.
"""

from array import array
from collections.abc import Iterator
from datetime import UTC, datetime

from msgspec import Struct, json, msgpack, structs

from driftq.engine.files.topic_checkpoint import SegmentState, TopicCheckpoint, decode_topic
from driftq.engine.state.holes import HoleList
from driftq.errors import InvalidRequestError, TopicNotFoundError, UnrecoverableError
from driftq.model.tombstone import Reason
from driftq.model.units import MS_PER_S
from driftq.offline.directory_lock import held
from driftq.offline.repair.seq_ranges import Range, joined
from driftq.storage.layout import Layout
from driftq.storage.segments.block_index import BlockIndex
from driftq.storage.segments.cold_store import ColdStore
from driftq.storage.segments.hot_store import BlockDamagedError, SegmentStore
from driftq.storage.server_id import is_of_another
from driftq.storage.snapshot_file import Snapshot, encode_snapshot, install_snapshot, newest_snapshot
from driftq.system.clock import Clock
from driftq.system.disk import Disk, Site, write_fully

ACCEPTED = "accepted.jsonl"


class AcceptedLoss(Struct, frozen=True):
    """An accepted loss: one line of `lost/accepted.jsonl`."""

    topic: str
    topic_id: int
    first_seq: int
    last_seq: int
    by: str
    at: str
    """RFC 3339 time, in UTC."""


class _Lost(Struct, frozen=True):
    """Unreadable seqs that can only be accepted together: a segment, or one block of it."""

    segment: SegmentState
    first_seq: int
    last_seq: int
    block: tuple[int, int, int] | None
    """First seq, rows and payload bytes of the block; None for the whole segment."""


def accept_loss(layout: Layout, clock: Clock, topic: str, first: int, last: int, by: str) -> AcceptedLoss:
    """Make a hole of unreadable seqs. Raise DriftQError, and OSError if the data directory fails."""
    with held(layout):
        snapshot = _checkpoint(layout)
        states = [decode_topic(content) for content in snapshot.topics]
        state = next((state for state in states if state.name == topic), None)
        if state is None:
            raise TopicNotFoundError(topic)
        units = _lost_units(layout, state, first, last)
        at = datetime.fromtimestamp(clock.wall_ms() / MS_PER_S, UTC).isoformat(timespec="seconds")
        accepted = AcceptedLoss(topic, state.topic_id, first, last, by, at.replace("+00:00", "Z"))
        _record(layout, accepted)
        states[states.index(state)] = _without(state, units)
        topics = [msgpack.encode(one) for one in states]
        number = 1 + max(layout.snapshots())
        install_snapshot(layout, number, encode_snapshot(Snapshot(snapshot.positions, snapshot.sections, topics)))
        return accepted


def accepted_losses(layout: Layout) -> list[AcceptedLoss]:
    """Return the losses that operators have accepted, oldest first. Raise OSError."""
    return [json.decode(line, type=AcceptedLoss) for line in _read(layout.disk, _path(layout)).splitlines()]


def _checkpoint(layout: Layout) -> Snapshot:
    _, snapshot, refused = newest_snapshot(layout)
    if snapshot is None or refused:
        what = f"checkpoint {refused[0]} cannot be read" if refused else "there is no checkpoint"
        raise UnrecoverableError(f"{layout.data}: {what}; run `driftq repair` first")
    return snapshot


def _floor(state: TopicCheckpoint) -> int:
    """Return the first seq that retention has not passed: holes below it are not reported to readers."""
    return max(state.earliest, 1 + max(state.cap_lost, state.ttl_lost))


def _lost_units(layout: Layout, state: TopicCheckpoint, first: int, last: int) -> list[_Lost]:
    """Return what cannot be read in a range. Raise InvalidRequestError if the range also has readable records."""
    floor = _floor(state)
    units: list[_Lost] = []
    for segment in state.segments:
        if segment.first_seq <= last and segment.end_seq > first:
            units += _unreadable(layout, state, segment, first, last)
    if not units:
        raise InvalidRequestError(f"every record in {first}..{last} of topic {state.name!r} can be read")
    lost = joined([(unit.first_seq, unit.last_seq) for unit in units])
    if _above(lost, floor) != _above([(first, last)], floor):
        ranges = ", ".join(f"{low}..{high}" for low, high in lost)
        raise InvalidRequestError(f"the unreadable ranges are {ranges}; accept exactly these, one by one")
    return units


def _above(ranges: list[Range], floor: int) -> list[Range]:
    return [(max(low, floor), high) for low, high in ranges if high >= floor]


def _unreadable(
    layout: Layout, state: TopicCheckpoint, segment: SegmentState, first: int, last: int
) -> Iterator[_Lost]:
    topic_id = state.topic_id
    try:
        reader, index = _opened(layout, topic_id, segment)
        reader.read_flags(topic_id, segment.first_seq, index)
    except (OSError, BlockDamagedError):
        yield _Lost(segment, segment.first_seq, segment.end_seq - 1, None)
        return
    for block in range(len(index)):
        low, high = index.first_seq(block), index.end_seq(block) - 1
        if low <= last and high >= first:
            try:
                reader.read_block(topic_id, segment.first_seq, index, block)
            except (OSError, BlockDamagedError):
                yield _Lost(segment, low, high, (low, index.count(block), index.payload(block)))


def _opened(layout: Layout, topic_id: int, segment: SegmentState) -> tuple[SegmentStore | ColdStore, BlockIndex]:
    """Return the store and the index of a segment, as a start finds them. Raise OSError or BlockDamagedError."""
    store = SegmentStore(layout)
    if segment.cells is not None:
        return store, BlockIndex(array("Q", segment.cells))
    if not segment.cold:
        index = store.read_index(topic_id, segment.first_seq)
        index = index or store.scan_index(topic_id, segment.first_seq, segment.end_seq)
        if index is not None:
            return store, index
    if layout.cold is None:
        if segment.cold:
            raise UnrecoverableError("these records are in the cold tier; pass the cold directory with --cold-dir")
        raise FileNotFoundError
    if not layout.topic_ids(cold=True) or is_of_another(layout):
        raise UnrecoverableError(
            f"{layout.cold} is not the cold directory of this server: it is empty, or has the id of another server;"
            " mount the right one and try again"
        )
    cold = ColdStore(layout)
    index = cold.read_index(topic_id, segment.first_seq)
    if index is None:
        raise BlockDamagedError("the cold segment is damaged")
    return cold, index


def _without(state: TopicCheckpoint, units: list[_Lost]) -> TopicCheckpoint:
    """Return the topic's state with holes in place of the unreadable seqs."""
    floor = _floor(state)
    holes = HoleList(list(state.holes))
    segments = list(state.segments)
    for unit in units:
        holes.add(max(unit.first_seq, floor), unit.last_seq, Reason.CORRUPTION)
        place = next(n for n, segment in enumerate(segments) if segment.first_seq == unit.segment.first_seq)
        if unit.block is None:
            del segments[place]
        else:
            low, rows, payload = unit.block
            dead = [entry for entry in segments[place].dead if entry[0] != low]
            segments[place] = structs.replace(segments[place], dead=[*dead, (low, rows, rows, payload)])
    return structs.replace(state, holes=holes.all, segments=segments)


def _record(layout: Layout, accepted: AcceptedLoss) -> None:
    """Write down durably who accepted which loss, and when."""
    disk, lost = layout.disk, layout.lost().data
    disk.mkdir(lost)
    disk.sync_dir(layout.data, Site.LOST_TOPIC_DIR)
    content = _read(disk, _path(layout))
    file = disk.create(f"{_path(layout)}.new")
    try:
        write_fully(file, [content + json.encode(accepted) + b"\n"], 0)
        file.sync(Site.LOST_RECORD)
    finally:
        file.close()
    disk.rename(f"{_path(layout)}.new", _path(layout))
    disk.sync_dir(lost, Site.LOST_DIR)


def _path(layout: Layout) -> str:
    return f"{layout.lost().data}/{ACCEPTED}"


def _read(disk: Disk, path: str) -> bytes:
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return b""
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()
