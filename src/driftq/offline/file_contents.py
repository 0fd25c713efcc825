"""Lists the contents of the files of a data directory: one row per file, or one row per item in a file.

This module neither verifies nor locks. If a server is running, the end of a log may be half written, and a file may
disappear while it is read. `offline/verification` checks whether the files are correct.

    wal        a row per frame                      data       a row per block, by the frames themselves
    idx        a row per entry                      tags       one row
    parquet    a row per row group                  del        one row
    snapshot   positions, sections and topics       part       head and rows
"""

import posixpath
from collections.abc import Callable, Iterator

from msgspec import DecodeError, structs

from driftq.engine.files.topic_checkpoint import decode_topic
from driftq.engine.state.control_frames import (
    COMMIT,
    DeleteFrame,
    FloorsBody,
    HoleBody,
    TopicFrame,
    WatermarkBody,
    decode_body,
)
from driftq.errors import NotFoundError, StartError
from driftq.offline.segment_check import FrameSpan, walk_data
from driftq.storage.blocks.block import Block
from driftq.storage.blocks.delete_flags import DELETED
from driftq.storage.blocks.frame import Frame, Kind, control_body, read_frame
from driftq.storage.layout import Layout
from driftq.storage.part_file import KIND as PART_HEAD
from driftq.storage.part_file import read_head
from driftq.storage.segments.block_index import decode_index
from driftq.storage.segments.cold_file import ColdDamagedError, ColdFile
from driftq.storage.segments.tag_index import TagIndex
from driftq.storage.snapshot_file import decode_snapshot
from driftq.storage.wal.wal_head import HEAD_BYTES, decode_file_head, read_wal_head
from driftq.storage.wal.wal_reader import Damage, scan_of
from driftq.system.disk import Disk, read_file

Row = dict[str, object]

KINDS = {
    **{int(kind): kind.name.lower() for kind in Kind},
    32: "leases",
    33: "lease_state",
    48: "router",
    49: "router_delete",
    50: "router_mark",
    64: "v1_topic",
    65: "v1_offset",
    66: "v1_gap",
    67: "v1_retry",
    68: "v1_seek",
    69: "v1_retired",
    72: "v1_outcome",
    80: "cursor",
    COMMIT: "commit",
    PART_HEAD: "part",
}
"""Names of frame kinds, as in `docs/formats/frame.md`."""


def files(layout: Layout) -> Iterator[Row]:
    """Yield one row per file of both directories: its kind and a summary of its contents."""
    for number in layout.snapshots():
        yield _summary(layout.disk, layout.snapshot_path(number), "snapshot")
    for number, name in layout.wal_files():
        yield _summary(layout.disk, layout.wal_path(name, number), "wal")
    for cold in (False, True):
        for topic_id in layout.topic_ids(cold=cold):
            for first_seq, suffixes in sorted(layout.segment_files(topic_id, cold=cold).items()):
                for suffix in sorted(suffixes):
                    yield _summary(layout.disk, layout.segment_path(topic_id, first_seq, suffix), suffix)
    for number in layout.stage_files():
        yield _summary(layout.disk, layout.stage_path(number), "part")


def _summary(disk: Disk, path: str, kind: str) -> Row:
    row: Row = {"file": path, "kind": kind, "bytes": 0, "items": 0, "records": 0, "holds": ""}
    try:
        file = disk.open(path)
        row["bytes"] = file.size()
        file.close()
        items = [item for item in _READERS[kind](disk, path) if "error" not in item]
    except (OSError, ColdDamagedError, StartError) as error:
        row["holds"] = f"cannot be read: {error}"
        return row
    row["items"] = len(items)
    row["records"] = sum(count for item in items if isinstance(count := item.get("records"), int))
    row["holds"] = _in_short(kind, items)
    return row


def _in_short(kind: str, items: list[Row]) -> str:
    if not items:
        return "nothing"
    if kind == "wal":
        topics = {item["topic_id"] for item in items} - {0}
        return f"{len(items)} frames of {len(topics)} topics"
    if kind in ("data", "idx", "parquet"):
        return f"seqs {items[0]['first_seq']} to {items[-1]['last_seq']} in {len(items)} blocks"
    if kind == "snapshot":
        return f"{sum(item['item'] == 'topic' for item in items)} topics"
    return str(items[0].get("holds", ""))


def inside(disk: Disk, path: str) -> Iterator[Row]:
    """Return one row per item of a file; the file's name gives its kind. Raise NotFoundError, OSError or StartError."""
    kind = kind_of(path)
    if kind is None:
        raise NotFoundError(f"{path} is not a file of a data directory (expected wal-, snapshot-, seg- or part-)")
    if not disk.exists(path):
        raise NotFoundError(f"file {path} does not exist")
    return _READERS[kind](disk, path)


def kind_of(path: str) -> str | None:
    """Return the kind of file that a name belongs to; None if it is not a name of ours."""
    stem, _, suffix = posixpath.basename(path).rpartition(".")
    first = stem.partition("-")[0]
    if first == "seg" and suffix in _READERS:
        return suffix
    return first if (first, suffix) in (("wal", "log"), ("snapshot", "bin"), ("part", "bin")) else None


def _wal(disk: Disk, path: str) -> Iterator[Row]:
    content = read_file(disk, path)
    number = int(posixpath.basename(path)[4:20])
    head = read_wal_head(content[:HEAD_BYTES])
    if head is not None and head.version > 1:
        yield _frame_row(content, head.frame)
    scan = scan_of(content, number, head)
    for met in scan:
        if isinstance(met, Damage):
            yield {"offset": met.start, "length": met.end - met.start, "kind": "", "error": "not a frame"}
        else:
            yield _frame_row(content, met)
    if scan.torn:
        yield {"offset": scan.end, "length": len(content) - scan.end, "kind": "", "error": "torn end of the log"}


def _frame_row(content: bytes, frame: Frame) -> Row:
    row: Row = {
        "offset": frame.start,
        "length": frame.end - frame.start,
        "kind": KINDS.get(frame.kind, f"kind {frame.kind}"),
        "topic_id": frame.topic_id,
        "seq": frame.seq,
        "records": frame.count,
        "ts": frame.ts,
    }
    return row | {"holds": _says(content, frame)}


def _says(content: bytes, frame: Frame) -> str:
    """Describe a frame in a few words."""
    if frame.kind == Kind.APPEND:
        return f"seqs {frame.seq} to {frame.seq + frame.count - 1}"
    body = control_body(content, frame)
    try:
        match frame.kind:
            case Kind.FILE_HEAD:
                head = decode_file_head(body)
                by = f", written by DriftQ {head.written_by}" if head.written_by else ""
                return f"run {head.run}, shard {head.shard} of {head.shards}, after file {head.previous}{by}"
            case Kind.TOPIC:
                topic = decode_body(TopicFrame, body)
                return f"{topic.name} ({topic.config.durability})"
            case Kind.DELETE:
                return _delete_says(decode_body(DeleteFrame, body))
            case Kind.HEAD_WATERMARK:
                return f"reserved to {decode_body(WatermarkBody, body).reserved}"
            case Kind.HOLE:
                hole = decode_body(HoleBody, body)
                return f"seqs {hole.first} to {hole.last}: {hole.reason}"
            case Kind.FLOORS:
                floors = decode_body(FloorsBody, body)
                return f"earliest {floors.earliest}, last lost to caps {floors.cap_lost}, to TTL {floors.ttl_lost}"
            case _:
                return f"{len(body)} bytes"
    except DecodeError as error:
        return f"{len(body)} bytes that cannot be read: {error}"


def _delete_says(body: DeleteFrame) -> str:
    said = [f"before {body.before}"] if body.before is not None else []
    said += [f"tag {body.tag.decode(errors='replace')}"] if body.tag is not None else []
    said += [f"tags {body.prefix.decode(errors='replace')}*"] if body.prefix is not None else []
    said += [f"{len(body.seqs)} seqs"] if body.seqs is not None else []
    return ", ".join(said) or "everything"


def _block_row(block: Block, offset: int, length: int) -> Row:
    return {
        "offset": offset,
        "length": length,
        "topic_id": int.from_bytes(block.frame[16:24], "little"),
        "first_seq": block.first_seq,
        "last_seq": block.last_seq,
        "records": block.count,
        "deleted": block.flags.count(DELETED),
        "first_ts": block.ts,
        "last_ts": block.last_ts,
        "payload_bytes": block.payload_bytes,
    }


def _data(disk: Disk, path: str) -> Iterator[Row]:
    topic_id = int(posixpath.basename(posixpath.dirname(path)), 16)
    file = disk.open(path)
    try:
        for met in walk_data(file, topic_id, 0, file.size()):
            if isinstance(met, FrameSpan):
                yield _block_row(met.block, met.offset, met.length)
            else:
                yield {"offset": met[0], "length": file.size() - met[0], "error": met[1]}
    finally:
        file.close()


def _idx(disk: Disk, path: str) -> Iterator[Row]:
    index = decode_index(read_file(disk, path))
    if index is None:
        yield {"offset": 0, "error": "the index is not valid"}
        return
    for number in range(len(index)):
        offset, length = index.place(number)
        yield {
            "offset": offset,
            "length": length,
            "first_seq": index.first_seq(number),
            "last_seq": index.end_seq(number) - 1,
            "records": index.count(number),
            "first_ts": index.first_ts(number),
            "last_ts": index.last_ts(number),
            "payload_bytes": index.payload(number),
        }


def _tags(disk: Disk, path: str) -> Iterator[Row]:
    tags = TagIndex.decode(read_file(disk, path))
    if tags is None:
        yield {"error": "the tag index is not valid"}
        return
    first, last = tags.first.decode(errors="replace"), tags.last.decode(errors="replace")
    yield {"tags": len(tags), "first": first, "last": last, "holds": f"{len(tags)} tags, {first} to {last}"}


def _cold(disk: Disk, path: str) -> ColdFile | None:
    stem = path.rpartition(".")[0]
    return ColdFile.open(disk, f"{stem}.parquet", read_file(disk, f"{stem}.del"))


def _parquet(disk: Disk, path: str) -> Iterator[Row]:
    opened = _cold(disk, path)
    if opened is None:
        yield {"error": "the file and its flags file (.del) do not belong together"}
        return
    row = 0
    for group in opened.groups:
        yield {
            "offset": group.start,
            "length": group.end - group.start,
            "topic_id": opened.topic_id,
            "first_seq": group.first_seq,
            "last_seq": group.first_seq + group.count - 1,
            "records": group.count,
            "deleted": opened.flags()[row : row + group.count].count(DELETED),
            "first_ts": group.first_ts,
            "last_ts": group.last_ts,
            "payload_bytes": group.payload_bytes,
        }
        row += group.count


def _del(disk: Disk, path: str) -> Iterator[Row]:
    opened = _cold(disk, path)
    if opened is None:
        yield {"error": "the flags and their Parquet file do not belong together"}
        return
    deleted = opened.flags().count(DELETED)
    yield {"flags": len(opened.flags()), "deleted": deleted, "holds": f"{deleted} of {opened.count} records deleted"}


def _snapshot(disk: Disk, path: str) -> Iterator[Row]:
    snapshot = decode_snapshot(read_file(disk, path))
    if snapshot is None:
        yield {"error": "the checkpoint is not valid"}
        return
    for name, (number, offset) in sorted(snapshot.positions.items()):
        yield {"item": "position", "name": name or "wal", "holds": f"replay starts at byte {offset} of file {number}"}
    for name, section in sorted(snapshot.sections.items()):
        yield {"item": "section", "name": name, "holds": f"{len(section)} bytes"}
    for content in snapshot.topics:
        topic = decode_topic(content)
        tail = sum(_count_of(frame) for frame in topic.tail)
        yield {
            "item": "topic",
            "name": topic.name,
            "topic_id": topic.topic_id,
            "durability": str(topic.config.durability),
            "head_seq": topic.head,
            "earliest_seq": topic.earliest,
            "segments": len(topic.segments),
            "holes": len(topic.holes),
            "records": tail,
            "holds": f"{len(topic.segments)} segments referenced, {tail} records copied",
        }


def _count_of(frame: bytes) -> int:
    header = read_frame(frame, 0, len(frame))
    return header.count if isinstance(header, Frame) else 0


def _part(disk: Disk, path: str) -> Iterator[Row]:
    found = read_head(disk, path)
    if found is None:
        yield {"error": "the staged part is incomplete"}
        return
    yield {"topic_id": found.topic_id, **structs.asdict(found.head)} | {
        "holds": f"batch {found.head.batch} of {found.head.writer}"
    }


_READERS: dict[str, Callable[[Disk, str], Iterator[Row]]] = {
    "wal": _wal,
    "data": _data,
    "idx": _idx,
    "tags": _tags,
    "parquet": _parquet,
    "del": _del,
    "snapshot": _snapshot,
    "part": _part,
}
