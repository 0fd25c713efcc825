"""Runs of Append frames of one record each: what a replay of millions of small writes spends its time on.

A run is of one topic, its seqs follow each other, and each frame has data, perhaps a tag, and no more. Such a frame is
read by one `unpack` and two checksums, with no object of its own. Invariant: what is taken here is what `read_frame`
and `columns.read_one` accept; the first frame that is anything else ends the run, and they say what it is.
"""

from array import array
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from driftq.storage.blocks.frame import HEAD_BYTES, HEADER, MAGIC, SUM, Kind
from driftq.storage.blocks.frame_columns import PLAIN, TAG
from driftq.storage.blocks.rows import Rows, Texts

_APPEND = int(Kind.APPEND)
# A header, its checksum, the directory, and what stands where either shape of frame has its first offsets.
_START = Struct("<4sIHHIQQQQQIIiiii")
_ENDS = Struct("<ii")
_HEADER_BYTES = HEADER.size
_FIRST = HEAD_BYTES + 8
_AROUND = _FIRST + 7 + 8 + 1
"""All of a frame but its columns: header, directory, padding, checksum, flag."""
_BEHIND = 8 + 1


class SingleRecordRun(NamedTuple):
    """The records of a run, with their commit times, where it ends, and the farthest `synced_to` for its file."""

    rows: Rows
    times: "array[int]"
    end: int
    synced_to: int


def read_run(  # noqa: C901, PLR0912, PLR0915 - a call per frame is what it saves
    buffer: bytes, place: int, *, number: int, topic_id: int, seq: int, rows_max: int, bytes_max: int, salt: int = 0
) -> SingleRecordRun | None:
    """The run at `place` of WAL file `number`, from this seq on: no more rows, and no more payload but for the last."""
    # Everything in local names, and every check in the order of what fails most: it is run once per record.
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
            # Lengths of tag and data; the tag's validity and padding, its two offsets; then the tag.
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
