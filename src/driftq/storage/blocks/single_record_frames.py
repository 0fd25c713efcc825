"""Runs of Append frames of one record each. A replay of millions of small writes spends most of its time on them.

All frames of a run belong to one topic and have consecutive seqs. Each has data, perhaps a tag, and nothing else. One
`unpack` and two checksums read such a frame, without an object for it. Invariant: frames that are accepted here are
accepted by `read_frame` and `frame_columns.read_one` too. The first other frame ends the run, and is left to them.
"""

from array import array
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from driftq.storage.blocks.frame import HEAD_BYTES, HEADER, MAGIC, SUM, Kind
from driftq.storage.blocks.frame_columns import PLAIN, TAG
from driftq.storage.blocks.rows import Rows, Texts

_APPEND = int(Kind.APPEND)
# A header, its checksum, the directory, and the bytes at which both shapes of frame have their first offsets.
_START = Struct("<4sIHHIQQQQQIIiiii")
_ENDS = Struct("<ii")
_HEADER_BYTES = HEADER.size
_FIRST = HEAD_BYTES + 8
_AROUND = _FIRST + 7 + 8 + 1
"""Bytes of a frame without its columns: header, directory, padding, checksum, flag."""
_BEHIND = 8 + 1


class SingleRecordRun(NamedTuple):
    """The records of a run with their commit times, its end, and the highest `synced_to` for its file."""

    rows: Rows
    times: "array[int]"
    end: int
    synced_to: int


def read_run(  # noqa: C901, PLR0912, PLR0915 - one function, because it saves a call per frame
    buffer: bytes, place: int, *, number: int, topic_id: int, seq: int, rows_max: int, bytes_max: int, salt: int = 0
) -> SingleRecordRun | None:
    """Return the run at `place` of WAL file `number`, from `seq` on, or None if there is none.

    The run has at most `rows_max` rows. It ends with the row that reaches `bytes_max` of payload.
    """
    # Local names, and the checks that fail most often first: this runs once per record.
    unpack, unpack_ends, unpack_sum, digest = _START.unpack_from, _ENDS.unpack_from, SUM.unpack_from, xxh3_64_intdigest
    size_of_file = len(buffer)
    last_place = size_of_file - _START.size
    datas: list[bytes] = []
    tags: list[bytes | None] = []
    times: list[int] = []
    known, following = number << 32, seq
    while following - seq < rows_max and bytes_max > 0 and place <= last_place:
        magic, length, kind, bits, count, topic, first, ts, synced_to, head_sum, one, two, a, b, c, d = unpack(
            buffer, place
        )
        if first != following or topic != topic_id or count != 1 or kind != _APPEND or magic != MAGIC:
            break
        end = place + 8 + length
        tag = None
        if bits & ~PLAIN == TAG:
            # Lengths of tag and data; the tag's validity and padding; its two offsets; then the tag.
            at = place + _FIRST + ((one + 7) & ~7)
            size = two
            if c or d < 0 or d != one - 16 or end - at != ((size + 7) & ~7) + _AROUND - _FIRST:
                break
            if end > size_of_file or size < 8 or unpack_ends(buffer, at) != (0, size - 8):
                break
            if a & 1:
                tag = buffer[place + _FIRST + 16 : place + _FIRST + one]
        elif bits == PLAIN:
            at = place + _FIRST
            size = one
            if a or b < 0 or b != size - 8 or end - at != ((size + 7) & ~7) + _AROUND - _FIRST or end > size_of_file:
                break
        else:
            break
        head_sum ^= salt
        if digest(buffer[place : place + _HEADER_BYTES]) != head_sum:
            break
        if digest(buffer[place + HEAD_BYTES : end - _BEHIND], head_sum) != unpack_sum(buffer, end - _BEHIND)[0]:
            break
        datas.append(buffer[at + 8 : at + size])
        tags.append(tag)
        times.append(ts)
        if synced_to > known and synced_to >> 32 == number:
            known = synced_to
        bytes_max -= size - 8
        following += 1
        place = end
    if not datas:
        return None
    column = Texts.of(tags) if tags.count(None) < len(tags) else None
    return SingleRecordRun(Rows(Texts.of(datas), tag=column), array("q", times), place, known)
