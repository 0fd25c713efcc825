"""A frame of one record has the same bytes, whichever of its two encoders made it."""

from hypothesis import given
from hypothesis import strategies as st

from driftq.storage.blocks.block import encode_block
from driftq.storage.blocks.rows import Row
from driftq.storage.blocks.single_record_encoder import encode_single

U64 = st.integers(0, 2**63 - 1)


@given(
    data=st.binary(min_size=1, max_size=40) | st.just(b"x" * 9000),
    tag=st.none() | st.binary(max_size=40) | st.sampled_from([b"plain", b'"', b"\\", b"\n"]),
    key=st.none() | st.binary(min_size=1, max_size=40),
    topic_id=U64,
    seq=U64,
    ts=U64,
    synced_to=U64,
)
def test_both_encoders_give_the_same_frame(
    data: bytes, tag: bytes | None, key: bytes | None, topic_id: int, seq: int, ts: int, synced_to: int
) -> None:
    row = Row(data, tag, len(data))
    single = encode_single(row, topic_id=topic_id, first_seq=seq, ts=ts, synced_to=synced_to, key=key)
    assert single == encode_block(row.rows(), topic_id=topic_id, first_seq=seq, ts=ts, synced_to=synced_to, key=key)
