"""Bytes that a client wrote are never taken for frames of the log, whatever a crash leaves around them.

A client that writes to topic `mine` plants frames about topic `victim`: whole ones, with checksums that hold, at places
where a reader would look for frames. Then the power fails, and some pages of the write that carried them are lost. The
control test does the same on a log without a salt, and shows that the attack works there.
"""

from collections.abc import Iterator
from functools import cache

import pytest
from msgspec import msgpack

from driftq.engine.state.control_frames import (
    COMMIT,
    CommitBody,
    DeleteFrame,
    FloorsBody,
    HoleBody,
    TimeSeenBody,
    TopicFrame,
    WatermarkBody,
    encode_body,
)
from driftq.engine.timeline import ClockBody, TimelinePoint
from driftq.errors import StartError
from driftq.model.tombstone import Reason
from driftq.model.topic_config import Durability, TopicConfig
from driftq.offline.repair.repair import Repair
from driftq.storage import part_file
from driftq.storage.blocks.block import encode_block
from driftq.storage.blocks.frame import Frame, Kind, encode_control
from driftq.storage.blocks.rows import Rows, Texts
from driftq.storage.layout import Layout
from driftq.storage.wal.memory_spans import Span
from driftq.storage.wal.wal_head import MAGIC_2, FileHead, encode_file_head, read_wal_head
from driftq.storage.wal.wal_reader import scan_of
from driftq.system.disk import Site, read_file
from driftq.system.entropy import Entropy
from driftq.testing import CrashMode, EngineRig, ManualClock, ServerRig, SimDisk

PAGE = 4096
VICTIM = 1
FUTURE = 1 << 50
WAL = "/data/wal/wal-0000000000000001.log"
CLAIM = 1 << 32 | 1 << 24
"""What planted frames say about how far file 1 was synced: beyond everything in it."""
FEATURE_KINDS = (32, 33, 48, 49, 50, *range(64, 73), 80, part_file.KIND)
"""Kinds that features own: leases, routers, the broker, cursors, and heads of staged parts."""
COLUMNS = ("tag", "node", "data", "key")


def _control(kind: int, body: bytes, *, magic: bytes = b"DQF\x01") -> bytes:
    """Return a control frame about the victim of which all bytes are ASCII, so that any text column takes it."""
    for ts in range(1 << 20):
        frame = encode_control(kind, body, topic_id=VICTIM, op=FUTURE, ts=ts, synced_to=CLAIM, magic=magic)
        if frame.isascii():
            return frame
    raise AssertionError("no timestamp makes the frame ASCII")


@cache
def planted() -> dict[str, bytes]:
    """Return a frame of every kind that would change the victim."""
    config = TopicConfig(durability=Durability.FSYNC, cap_records=1).resolved("victim")
    forged = Rows(Texts.of([b"666"]))
    return {
        "append": encode_block(forged, topic_id=VICTIM, first_seq=4, ts=0, synced_to=CLAIM),
        "topic": encode_control(
            Kind.TOPIC, encode_body(TopicFrame("victim", config, 0)), topic_id=VICTIM, op=99, ts=0, synced_to=CLAIM
        ),
        "topic_delete": _control(Kind.TOPIC_DELETE, b""),
        "delete": encode_control(
            Kind.DELETE, encode_body(DeleteFrame(100, 100)), topic_id=VICTIM, op=99, ts=0, synced_to=CLAIM
        ),
        "time_seen": encode_control(
            Kind.TIME_SEEN, encode_body(TimeSeenBody(FUTURE)), topic_id=0, op=99, ts=0, synced_to=CLAIM
        ),
        "watermark": encode_control(
            Kind.HEAD_WATERMARK, encode_body(WatermarkBody(9000)), topic_id=VICTIM, op=99, ts=0, synced_to=CLAIM
        ),
        "hole": encode_control(
            Kind.HOLE, encode_body(HoleBody(1, 2, Reason.CORRUPTION)), topic_id=VICTIM, op=99, ts=0, synced_to=CLAIM
        ),
        "floors": encode_control(
            Kind.FLOORS, encode_body(FloorsBody(3, 2, 0)), topic_id=VICTIM, op=99, ts=0, synced_to=CLAIM
        ),
        "mark": _control(Kind.CHECKPOINT_MARK, b""),
        "file_head": _control(Kind.FILE_HEAD, b""),
        "file_head_2": encode_control(
            Kind.FILE_HEAD,
            encode_file_head(FileHead(1, 0, 1, 0, 0, salt=bytes(8))),
            topic_id=0,
            op=0,
            ts=0,
            synced_to=CLAIM,
            magic=MAGIC_2,
        ),
        "commit": encode_control(
            COMMIT, encode_body(CommitBody("w", 1, 1, 3)), topic_id=VICTIM, op=99, ts=0, synced_to=CLAIM
        ),
        "drained": _control(Kind.DRAINED, b""),
        "clock": encode_control(
            Kind.CLOCK,
            encode_body(ClockBody(FUTURE, 0, FUTURE, [TimelinePoint(0, 0, 1)])),
            topic_id=0,
            op=99,
            ts=0,
            synced_to=CLAIM,
        ),
        "spans": encode_control(
            Kind.SPANS, msgpack.encode([Span(4096, 1 << 19, 0, [VICTIM])]), topic_id=0, op=0, ts=0, synced_to=CLAIM
        ),
        **{f"feature_{kind}": _control(kind, b"") for kind in FEATURE_KINDS},
        "unknown": _control(0x7F, b""),
        "newer": _control(Kind.DELETE, b"", magic=b"DQF\x07"),
    }


def test_every_kind_of_frame_is_planted() -> None:
    features = ServerRig().server.engine.catalog.features
    kinds = {*Kind, COMMIT, part_file.KIND}.union(*(feature.kinds for feature in features))
    assert kinds <= {int.from_bytes(frame[8:10], "little") for frame in planted().values()}


def _write(frame: bytes, column: str) -> tuple[Rows, str | None]:
    """Return a write of several pages that carries the frame, at a multiple of 8 bytes, on each of them."""
    count = 60
    fill = [b"x" * 240] * count
    texts = Texts.of([frame * max(1, 240 // len(frame))] * count)
    match column:
        case "tag":
            return Rows(Texts.of([b"1"] * count), tag=texts), None
        case "node":
            return Rows(Texts.of([b"1"] * count), node=texts), None
        case "data":
            return Rows(texts), None
        case _:
            key = frame.decode() if frame.isascii() else None
            return Rows(Texts.of([b"1"] * count), tag=Texts.of(fill)), key


def _attacked(frame: bytes, column: str, entropy: Entropy | None = None) -> tuple[EngineRig, int, int]:
    """Return a server after the write, and where in the log the write begins and ends."""
    rig = EngineRig(wal_file_bytes=1 << 20, segment_max_events=1000, entropy=entropy)
    rig.put("victim")
    rig.put("mine", Durability.DISK)
    for number in range(3):
        rig.write("victim", number)
    rows, key = _write(frame, column)
    rig.run(rig.engine.append("mine", rows, key=key))
    content = read_file(rig.disk, WAL)
    frames = [met for met in scan_of(content, 1, read_wal_head(content)) if isinstance(met, Frame)]
    (write,) = (met for met in frames if met.topic_id == VICTIM + 1 and met.kind == Kind.APPEND)
    return rig, write.start, write.end


def _torn(rig: EngineRig, start: int, end: int) -> Iterator[SimDisk]:
    """Yield the disk with each page of the write lost, and with all pages up to each of them lost."""
    pages = range(start // PAGE, (end - 1) // PAGE + 1)
    assert len(pages) > 2
    for page in pages:
        for first in {page, pages[0]}:
            disk = rig.disk.crash(CrashMode.KEEP, 0)
            file = disk.open(WAL)
            lost_from, lost_to = max(start, first * PAGE), min(end, (page + 1) * PAGE)
            file.pwritev([bytes(lost_to - lost_from)], lost_from)
            file.sync(Site.WAL_COMMIT)
            yield disk


def _started(disk: SimDisk) -> EngineRig:
    return EngineRig(disk=disk, wal_file_bytes=1 << 20, segment_max_events=1000)


def _violations(disk: SimDisk) -> list[str]:
    """Start a server on a disk and return what the planted frames have changed."""
    try:
        rig = _started(disk)
    except StartError as error:
        return [f"the start was refused: {error}"]
    found = []
    names = {topic.name for topic in rig.engine.catalog.visible()}
    if names != {"victim", "mine"}:
        found.append(f"the topics are {names}")
    if "victim" in names:
        records, tombstones = rig.walk("victim")
        if [record["data"] for record in records] != [0, 1, 2] or tombstones:
            found.append(f"the victim has {records}, {tombstones}")
        topic = rig.topic("victim")
        if (topic.head, topic.reserved, topic.config.cap_records) != (3, 0, 0):
            found.append(f"the victim's state is {topic.head}, {topic.reserved}, {topic.config}")
    if rig.engine.recovered.damaged:
        found.append("a torn end counts as damage")
    if rig.engine.time.now() >= FUTURE:
        found.append("time has moved")
    return found


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("kind", planted())
def test_no_planted_frame_is_applied_wherever_the_log_is_torn(kind: str, column: str) -> None:
    """proves: G-REC-13"""
    rig, start, end = _attacked(planted()[kind], column)
    for disk in _torn(rig, start, end):
        assert _violations(disk) == []


class _NoSalt:
    """Randomness that gives zeros: a log without a salt."""

    def token(self, size: int) -> bytes:
        """Return zeros."""
        return bytes(size)


def test_without_the_salt_the_same_bytes_are_frames() -> None:
    """The control of the test above: what it plants is really a frame where a reader looks for one."""
    for kind in planted().keys() - {"newer", "file_head_2"}:
        rig, start, end = _attacked(planted()[kind], "tag", _NoSalt())
        assert any(_violations(disk) for disk in _torn(rig, start, end)), kind


@pytest.mark.parametrize("column", ["tag", "key"])
@pytest.mark.parametrize("kind", ["append", "topic_delete", "topic", "delete"])
def test_repair_applies_no_planted_frame(kind: str, column: str) -> None:
    """proves: G-REC-13"""
    rig, start, end = _attacked(planted()[kind], column)
    for disk in list(_torn(rig, start, end))[:3]:
        layout = Layout(disk, "/data")

        def restart(disk: SimDisk = disk) -> None:
            assert _started(disk).close()

        Repair(layout, ManualClock(), restart, wal_file_bytes=1 << 20).run()
        assert _violations(disk) == []


def _checkpointed(frame: bytes) -> EngineRig:
    """Return a server that was stopped, whose checkpoint has the frame in a key; a segment of the victim is lost."""
    rig = EngineRig(wal_file_bytes=1 << 20, segment_max_events=4)
    rig.put("victim")
    rig.put("mine", Durability.DISK, idempotency_window_ms=1 << 40)
    for number in range(8):
        rig.write("victim", number)
    rig.write("mine", 1)
    # Straight into the state, and not by a write: which bytes a key takes is a matter of its checks, which may change.
    rig.topic("mine").keys.remember(frame, rig.clock.wall_ms(), 1, 1)
    assert rig.checkpoint()
    assert rig.close()
    path = "/data/topics/00000001/seg-0000000000000005.data"
    file = rig.disk.open(path)
    file.pwritev([bytes(file.size())], 0)
    file.sync(Site.WAL_COMMIT)
    return rig


def _planted_block() -> bytes:
    """Return a frame with records 5 to 8 of the victim."""
    return encode_block(Rows(Texts.of([b"666"] * 4)), topic_id=VICTIM, first_seq=5, ts=0)


@pytest.mark.parametrize("damaged", [False, True], ids=["sound", "damaged"])
def test_repair_takes_no_key_in_a_checkpoint_for_a_frame(*, damaged: bool) -> None:
    """A client of `mine` plants what would stand in for the lost records of the victim.

    proves: G-REC-13
    """
    rig = _checkpointed(_planted_block())
    (name,) = rig.disk.names("/data/meta")
    content = read_file(rig.disk, f"/data/meta/{name}")
    assert _planted_block() in content, "the control: a search by magic would find it"
    if damaged:
        file = rig.disk.open(f"/data/meta/{name}")
        place = content.index(_planted_block()) + len(_planted_block()) - 1
        file.pwritev([b"\x01"], place)  # inside the key, after the checksum of the frame: only the file's own fails
        file.sync(Site.WAL_COMMIT)

    def restart() -> None:
        assert EngineRig(disk=rig.disk, wal_file_bytes=1 << 20, segment_max_events=4).close()

    Repair(Layout(rig.disk, "/data"), ManualClock(), restart, wal_file_bytes=1 << 20).run()
    again = EngineRig(disk=rig.disk, wal_file_bytes=1 << 20, segment_max_events=4)
    names = [topic.name for topic in again.engine.catalog.visible() if topic.id == VICTIM]
    records, _ = again.walk(names[0])
    assert [record["data"] for record in records] == list(range(8)), "the log has the lost ones"


def test_frames_of_another_file_are_not_accepted() -> None:
    """A file system may show old bytes in a new file: their salt is that of the file they were written to."""
    rig, start, end = _attacked(b"x" * 8, "tag")
    content = bytearray(read_file(rig.disk, WAL))
    old = bytes(content[start:end])
    rig.restart()
    rig.write("mine", 1)
    newest = f"/data/wal/{max(rig.disk.names('/data/wal'))}"
    fresh = read_file(rig.disk, newest)
    head = read_wal_head(fresh)
    assert head is not None
    scan = scan_of(fresh, 2, head)
    before = list(scan)
    shown = fresh[: scan.end] + old + fresh[scan.end :]
    assert list(scan_of(shown, 2, head)) == before
