"""A start on files of a newer version is refused in one line that names the version to start, and changes nothing."""

from collections.abc import Callable

import pytest
from msgspec import Struct, msgpack, structs

from driftq.engine.files.topic_checkpoint import TopicCheckpoint, decode_topic
from driftq.engine.state.control_frames import TopicFrame, WatermarkBody
from driftq.errors import NewerFormatError
from driftq.model.topic_config import TopicConfig
from driftq.storage import snapshot_file as snapshot_module
from driftq.storage.blocks.frame import Kind, encode_control
from driftq.storage.layout import Layout
from driftq.storage.snapshot_file import Snapshot, decode_snapshot, encode_snapshot
from driftq.storage.wal.group_commit import Submission
from driftq.system.disk import Site, read_file
from driftq.testing import EngineRig
from tests.golden.directory import files_of

REFUSED = r"was written by DriftQ 9\.9\.9; this is DriftQ 0\.1\.0; start that version$"


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """From here on the server that writes is version 9.9.9."""
    monkeypatch.setattr("driftq.storage.wal.shards.__version__", "9.9.9")
    return monkeypatch


def _longer(body: Struct) -> bytes:
    """Encode a body of a version that has one more field."""
    return msgpack.encode([*structs.astuple(body), "a field of the future"])


def _written(kind: int, body: bytes) -> EngineRig:
    """Return a server that has logged a frame."""
    rig = EngineRig()
    rig.put("a")
    rig.write("a", 1)
    topic = rig.topic("a")
    frame = encode_control(kind, body, topic_id=topic.id, op=topic.in_flight.next_op, ts=0)
    shard = rig.engine.shards.of(topic.id)
    shard.submit(Submission([frame], sync=True, done=None))
    shard.flush()
    rig.runtime.run_until_idle()
    return rig


def _refused(rig: EngineRig, match: str = REFUSED) -> None:
    """Start again after a kill: refused, with every file as it was."""
    before = files_of(rig.disk.fork(), "/data")
    with pytest.raises(NewerFormatError, match=match) as refusal:
        rig.kill()
    assert "\n" not in refusal.value.message
    assert files_of(rig.disk, "/data") == before


_WITH_MORE_CONFIG = msgpack.encode(["a", {**msgpack.decode(msgpack.encode(TopicConfig())), "future": 1}, 0])


@pytest.mark.usefixtures("newer")
@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (0x7FFF, b""),
        (Kind.HEAD_WATERMARK, _longer(WatermarkBody(9))),
        (Kind.TIME_SEEN, msgpack.encode([9, "a field of the future"])),
        (Kind.TOPIC, _longer(TopicFrame("a", TopicConfig(), 0))),
        (Kind.TOPIC, _WITH_MORE_CONFIG),
    ],
    ids=["unknown kind", "longer body", "longer time", "longer topic", "unknown setting"],
)
def test_a_frame_of_a_newer_version_is_refused_by_name(kind: int, body: bytes) -> None:
    """proves: G-REC-14; row: F-START-4"""
    _refused(_written(kind, body))


@pytest.mark.usefixtures("newer")
def test_a_wal_file_of_a_newer_format_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """proves: G-REC-14"""
    monkeypatch.setattr("driftq.storage.wal.wal_head.MAGIC_2", b"DQF\x03")
    rig = EngineRig()
    rig.put("a")
    monkeypatch.undo()
    _refused(rig)


def _change_checkpoint(rig: EngineRig, change: Callable[[Snapshot], Snapshot], version: int) -> None:
    """Replace the newest checkpoint by what another version would have written."""
    layout = Layout(rig.disk, "/data")
    path = layout.snapshot_path(layout.snapshots()[-1])
    found = decode_snapshot(read_file(rig.disk, path))
    assert found is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_module, "VERSION", version)
        content = encode_snapshot(structs.replace(change(found), written_by="9.9.9"))
    file = rig.disk.create(path)
    file.pwritev([content], 0)
    file.sync(Site.SNAPSHOT_FILE)


def _with_longer_topic(snapshot: Snapshot) -> Snapshot:
    first, *others = snapshot.topics
    return structs.replace(snapshot, topics=[_longer(decode_topic(first)), *others])


def _with_unknown_setting(snapshot: Snapshot) -> Snapshot:
    state: TopicCheckpoint = decode_topic(snapshot.topics[0])
    fields = list(structs.astuple(state))
    fields[2] = {**msgpack.decode(msgpack.encode(state.config)), "future": 1}
    return structs.replace(snapshot, topics=[msgpack.encode(fields), *snapshot.topics[1:]])


def _with_unknown_section(snapshot: Snapshot) -> Snapshot:
    return structs.replace(snapshot, sections={**snapshot.sections, "future": b""})


def _with_longer_section(snapshot: Snapshot) -> Snapshot:
    state = msgpack.decode(snapshot.sections["engine"])
    return structs.replace(snapshot, sections={"engine": msgpack.encode([*state, 1])})


@pytest.mark.parametrize(
    ("change", "version"),
    [
        (lambda snapshot: snapshot, 3),
        (_with_longer_topic, 2),
        (_with_unknown_setting, 2),
        (_with_unknown_section, 2),
        (_with_longer_section, 2),
    ],
    ids=["newer format", "longer topic", "unknown setting", "unknown section", "longer section"],
)
def test_a_checkpoint_of_a_newer_version_is_refused_by_name(
    change: Callable[[Snapshot], Snapshot], version: int
) -> None:
    """It is not called damaged, and nobody is told to restore a backup.

    proves: G-REC-14; row: F-START-4
    """
    rig = EngineRig()
    rig.put("a")
    rig.write("a", 1)
    rig.checkpoint()
    _change_checkpoint(rig, change, version)
    _refused(rig)


def test_a_damaged_version_of_a_checkpoint_is_damage() -> None:
    """The checksum covers the version: one flipped bit does not make a file of the future."""
    rig = EngineRig()
    rig.put("a")
    rig.write("a", 1)
    rig.checkpoint()
    path = f"/data/meta/{max(rig.disk.names('/data/meta'))}"
    file = rig.disk.open(path)
    file.pwritev([b"\x06"], 4)
    file.sync(Site.SNAPSHOT_FILE)
    rig.kill()
    assert rig.engine.recovered.refused_snapshots == [path]
    assert rig.seqs("a") == [1]


def test_a_checkpoint_names_the_version_that_wrote_it() -> None:
    rig = EngineRig()
    rig.checkpoint()
    layout = Layout(rig.disk, "/data")
    found = decode_snapshot(read_file(rig.disk, layout.snapshot_path(layout.snapshots()[-1])))
    assert found is not None
    assert found.written_by == "0.1.0"
