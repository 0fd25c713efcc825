"""Add the salt of a WAL file to the frames that are written to it, with as few copies as possible.

A log writer that is a process of its own receives the frames into memory that only it reads, so it adds the salt in
place. A writer that is a thread shares the frames with the server's memory and with segments, which need them without a
salt, so it copies them. A frame gets its salt once, because it is written once: the frames of a failed write are never
written again.
"""

from collections.abc import Sequence
from typing import cast

from driftq.storage.blocks.frame import HEAD_BYTES, HEADER, SUM, add_salt

_COPIED_MAX = 1 << 16
"""Frames of at most this many bytes are copied to add the salt. Of larger ones, only the header is copied."""


def salted(buffers: Sequence[bytes | memoryview], salt: int) -> list[bytes]:
    """Return the pieces to write for these buffers of frames, with the salt in the checksum of each header.

    A buffer that is writable gets the salt in place.
    """
    pieces: list[bytes] = []
    small: list[bytes | memoryview] = []
    for buffer in buffers:
        if isinstance(buffer, memoryview) and not buffer.readonly:
            add_salt(buffer, salt)
            pieces.append(cast("bytes", buffer))
            continue
        if len(buffer) <= _COPIED_MAX:
            small.append(buffer)
            continue
        if small:
            pieces.append(_salted_copy(small, salt))
            small = []
        pieces += _salted_views(memoryview(buffer), salt)
    if small:
        pieces.append(_salted_copy(small, salt))
    return pieces


def _salted_copy(buffers: Sequence[bytes | memoryview], salt: int) -> bytes:
    content = bytearray().join(buffers)
    add_salt(content, salt)
    return cast("bytes", content)


def _salted_views(view: memoryview, salt: int) -> list[bytes]:
    """Return the frames of a large buffer as pieces, with copies of the headers only."""
    pieces: list[bytes] = []
    place = 0
    while place < len(view):
        end = place + 8 + int.from_bytes(view[place + 4 : place + 8], "little")
        head_sum = SUM.unpack_from(view, place + HEADER.size)[0] ^ salt
        header = b"".join((view[place : place + HEADER.size], SUM.pack(head_sum)))
        pieces += (header, cast("bytes", view[place + HEAD_BYTES : end]))
        place = end
    return pieces
