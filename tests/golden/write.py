"""Write the golden files of a format version that has none yet: `python -m tests.golden.write`, from the repository.

A golden file is never written twice: what a version once wrote must open for ever. A change of a format gets a new
version number, and this script then adds that version's files beside the old ones.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from msgspec import json

from driftq.storage import snapshot_file as snapshot
from driftq.storage.blocks import frame
from driftq.storage.blocks.block import Block
from driftq.storage.segments import block_index as segment
from driftq.storage.segments import cold_file as cold
from driftq.storage.segments import tag_index
from driftq.storage.segments.block_index import BlockIndex, encode_index
from driftq.storage.segments.cold_file import encode_del, encode_parquet
from driftq.storage.segments.tag_index import TagIndex, tag_rows
from driftq.storage.wal import wal_head
from driftq.testing.engine_rig import EngineRig
from tests.golden import brokered, clocked, directory, drained, leased, logged, routed, spanned, staged
from tests.golden.described import Described, Row, encode

HERE = Path(__file__).parent
TOPIC = 0x2A
FIRST_SEQ = 1001
T0 = 1_700_000_000_000


def _append(
    seq: int, rows: list[Row], *, batch_node: str | None = None, key: str | None = None, writer: str | None = None
) -> Described:
    names = [name or "" for row in rows for name in (row.tag, row.node, batch_node)]
    return Described(
        kind=1,
        topic_id=TOPIC,
        seq=seq,
        ts=rows[0].ts,
        synced_to=3 << 32 | 4096,
        rows=rows,
        batch_node=batch_node,
        key=key,
        writer=writer,
        flags=bytes(0xD5 if row.data == '"deleted"' else 0 for row in rows).hex(),
        plain=not any(character in name for name in names for character in '"\\\n\0'),
    )


def segment_frames() -> list[Described]:
    """Blocks of one segment: every column, absent and empty values, deleted rows, times that differ, a hole."""
    plain = [Row(T0, None, None, None, f'{{"n":{number}}}') for number in range(9)]
    tagged = [Row(T0 + 1, f"user-{number % 4:06}", None, None, f"[{number}]") for number in range(17)]
    mixed = [
        Row(T0 + 2, "order-1", "node-a", '{"k":"v"}', "null"),
        Row(T0 + 2, None, None, None, '"deleted"'),
        Row(T0 + 3, "", "", "{}", '""'),
        Row(T0 + 9, 'say "hi"\\\n\0', "größe-€-😀", '{"é":"\\u0000"}', '{"text":"größe 😀"}'),
    ]
    noded = [Row(T0 + 10, "user-000001", None, None, "true"), Row(T0 + 10, None, None, None, '"deleted"')]
    return [
        _append(FIRST_SEQ, plain),
        _append(FIRST_SEQ + 9, tagged),
        _append(FIRST_SEQ + 26, mixed),
        _append(FIRST_SEQ + 100, noded, batch_node="node-b"),
        _append(FIRST_SEQ + 102, [Row(T0 + 11, "user-000002-and-a-long-rest", None, None, "1e999")]),
    ]


def all_frames() -> list[Described]:
    """Every shape of frame."""
    control = [
        Described(kind=kind, topic_id=TOPIC, seq=kind, ts=T0, synced_to=1 << 32, body=body.hex())
        for kind, body in [(2, b'{"name":"orders"}'), (4, b"\x93\x01\x02\x03"), (6, b""), (8, bytes(range(16)))]
    ]
    keyed = _append(1, [Row(T0, None, None, None, "0")], key="an idempotency key", writer="query-7:12")
    biggest = Described(
        kind=0xFFFF, topic_id=(1 << 64) - 1, seq=(1 << 64) - 1, ts=(1 << 64) - 1, synced_to=(1 << 64) - 1, body="ff"
    )
    return [*control, keyed, *segment_frames(), biggest]


def _write_frame(path: Path) -> None:
    frames = all_frames()
    path.with_suffix(".bin").write_bytes(b"".join(map(encode, frames)))
    path.with_suffix(".json").write_bytes(json.format(json.encode(frames)))


def segment_blocks(frames: list[Described]) -> list[Block]:
    """The blocks of a segment."""
    return [Block.of(encode(described)) for described in frames]


def index_of(blocks: list[Block]) -> BlockIndex:
    """The index of a segment whose blocks stand back to back."""
    index, offset = BlockIndex(), 0
    for block in blocks:
        last = block.times(block.count - 1, block.count)
        assert isinstance(last, int)
        index.add(
            first_seq=block.first_seq,
            count=block.count,
            offset=offset,
            length=len(block.frame),
            first_ts=block.ts,
            last_ts=last,
            payload=block.payload_bytes,
        )
        offset += len(block.frame)
    return index


def _write_segment(path: Path) -> None:
    frames = segment_frames()
    blocks = segment_blocks(frames)
    path.with_suffix(".data").write_bytes(b"".join(block.frame for block in blocks))
    path.with_suffix(".idx").write_bytes(encode_index(index_of(blocks)))
    path.with_suffix(".json").write_bytes(json.format(json.encode(frames)))


def _write_tags(path: Path) -> None:
    frames = segment_frames()
    index = TagIndex.build(tag_rows(segment_blocks(frames), FIRST_SEQ))
    path.with_suffix(".tags").write_bytes(index.encode())
    path.with_suffix(".json").write_bytes(json.format(json.encode(frames)))


def _write_cold(path: Path) -> None:
    frames = segment_frames()
    parquet = encode_parquet(segment_blocks(frames), topic_id=TOPIC)
    path.with_suffix(".parquet").write_bytes(parquet)
    path.with_suffix(".del").write_bytes(encode_del(b"".join(bytes.fromhex(each.flags) for each in frames), parquet))
    path.with_suffix(".json").write_bytes(json.format(json.encode(frames)))


def _write_log(path: Path) -> None:
    content = logged.build(segment_frames())
    path.with_suffix(".log").write_bytes(content)
    path.with_suffix(".json").write_bytes(json.format(json.encode(logged.picture(content))))


def _write_files(path: Path, rig: EngineRig | routed.RoutedRig) -> None:
    for name, content in sorted(directory.files_of(rig.disk, "").items()):
        file = path / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _write_directory(path: Path) -> None:
    rig = directory.build()
    _write_files(path, rig)
    expected = directory.picture(EngineRig(directory.SETTINGS, disk=directory.loaded(path)))
    path.with_suffix(".json").write_bytes(json.format(json.encode(expected)))


def _write_drained(path: Path) -> None:
    _write_files(path, drained.build())
    expected = directory.picture(EngineRig(directory.SETTINGS, disk=directory.loaded(path)))
    path.with_suffix(".json").write_bytes(json.format(json.encode(expected)))


def _write_spanned(path: Path) -> None:
    _write_files(path, spanned.build())
    expected = directory.picture(EngineRig(directory.SETTINGS, disk=directory.loaded(path)))
    path.with_suffix(".json").write_bytes(json.format(json.encode(expected)))


def _write_staged(path: Path) -> None:
    rig = staged.build()
    _write_files(path, rig)
    expected = staged.picture(staged.StagedRig(directory.loaded(path)))
    path.with_suffix(".json").write_bytes(json.format(json.encode(expected)))


def _write_leased(path: Path) -> None:
    rig = leased.build()
    _write_files(path, rig)
    expected = leased.picture(leased.LeasedRig(directory.loaded(path)))
    path.with_suffix(".json").write_bytes(json.format(json.encode(expected)))


def _write_brokered(path: Path) -> None:
    rig = brokered.build()
    _write_files(path, rig.engine_rig)
    expected = brokered.picture(brokered.BrokeredRig(directory.loaded(path)))
    path.with_suffix(".json").write_bytes(json.format(json.encode(expected)))


def _write_routed(path: Path) -> None:
    _write_files(path, routed.build())
    expected = routed.picture(routed.RoutedRig(directory.loaded(path)))
    path.with_suffix(".json").write_bytes(json.format(json.encode(expected)))


def _write_clocked(path: Path) -> None:
    _write_files(path, clocked.build())
    expected = clocked.picture(clocked.ClockedRig(directory.loaded(path)))
    path.with_suffix(".json").write_bytes(json.format(json.encode(expected)))


FORMATS: dict[str, tuple[int, Callable[[Path], None]]] = {
    "frame": (frame.VERSION, _write_frame),
    "wal": (wal_head.VERSION, _write_log),
    "segment": (segment.MAGIC[3], _write_segment),
    "tags": (tag_index.MAGIC[3], _write_tags),
    "cold": (cold.FORMAT, _write_cold),
    "directory": (snapshot.VERSION, _write_directory),
    "drained": (drained.FORMAT, _write_drained),
    "spanned": (spanned.FORMAT, _write_spanned),
    "staged": (staged.FORMAT, _write_staged),
    "leased": (leased.FORMAT, _write_leased),
    "brokered": (brokered.FORMAT, _write_brokered),
    "routed": (routed.FORMAT, _write_routed),
    "clocked": (clocked.FORMAT, _write_clocked),
}
"""Each format, its version today, and what writes a file of it."""


def main() -> None:
    """Write what is missing."""
    for name, (version, write) in FORMATS.items():
        path = HERE / name / f"v{version}"
        if path.with_suffix(".json").exists():
            sys.stdout.write(f"{name} v{version} is there and stays as it is\n")
            continue
        path.parent.mkdir(exist_ok=True)
        write(path)
        sys.stdout.write(f"{name} v{version} written\n")


if __name__ == "__main__":
    main()
