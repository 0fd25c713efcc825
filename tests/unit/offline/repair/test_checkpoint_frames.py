"""Which frames of a checkpoint count, by how much of it is damaged."""

from msgspec import msgpack, structs

from driftq.engine.files.topic_checkpoint import decode_topic
from driftq.offline.repair.checkpoint_frames import checkpoint_frames
from driftq.storage.blocks.block import encode_block
from driftq.storage.blocks.rows import Rows, Texts
from driftq.storage.snapshot_file import Snapshot, decode_snapshot, encode_snapshot
from driftq.system.disk import read_file
from driftq.testing import EngineRig


def block(topic_id: int, seq: int) -> bytes:
    """Return a frame of one record."""
    return encode_block(Rows(Texts.of([b"1"])), topic_id=topic_id, first_seq=seq, ts=0)


def checkpoint() -> Snapshot:
    """Return one of topics 1 and 2 with a frame each, and in topic 1 a key that looks like a frame of topic 2."""
    rig = EngineRig()
    rig.put("one")
    rig.put("two")
    assert rig.checkpoint()
    (name,) = rig.disk.names("/data/meta")
    found = decode_snapshot(read_file(rig.disk, f"/data/meta/{name}"))
    assert found is not None
    one, two = (decode_topic(content) for content in found.topics)
    one = structs.replace(one, keys=[(block(2, 99), 1, 1, 1)], tail=[block(1, 10)])
    two = structs.replace(two, tail=[block(2, 20)])
    return structs.replace(found, topics=[msgpack.encode(one), msgpack.encode(two)])


def seqs(content: bytes) -> list[tuple[int, int]]:
    """Return topic and seq of every frame that is found."""
    return [(frame.topic_id, frame.seq) for _, frame in checkpoint_frames(content)]


def test_frames_are_those_in_the_tails_of_topics_whether_or_not_the_checksum_fits() -> None:
    content = encode_snapshot(checkpoint())
    assert seqs(content) == [(1, 10), (2, 20)]
    assert seqs(content[:16] + bytes(8) + content[24:]) == [(1, 10), (2, 20)]


def test_a_frame_that_is_damaged_is_left_out_and_the_others_are_found() -> None:
    content = bytearray(encode_snapshot(checkpoint()))
    content[content.index(block(1, 10)) + 60] ^= 1
    assert seqs(bytes(content)) == [(2, 20)]


def test_where_the_state_of_a_topic_is_damaged_only_its_own_frames_are_looked_for() -> None:
    snapshot = checkpoint()
    one, two = snapshot.topics
    broken = one[:2] + b"\xc1" + one[3:]  # no type of msgpack
    assert seqs(encode_snapshot(structs.replace(snapshot, topics=[broken, two]))) == [(1, 10), (2, 20)]


def test_where_the_list_of_topics_is_damaged_every_frame_counts() -> None:
    content = encode_snapshot(checkpoint())
    assert seqs(content[:24] + b"\xc1" + content[25:]) == [(2, 99), (1, 10), (2, 20)]
