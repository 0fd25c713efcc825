"""Give frames the salt of the file they go to, without a copy of what is large or what is the writer's own.

A log writer in a process of its own has received the frames into memory that nobody else reads: they get their salt
there. Frames that a server handed to a thread are in its memory and in segments as well, without a salt: they are
copied. A frame is salted once, for it is written once: what a failed write leaves is never written again.
"""

from collections.abc import Sequence
from typing import cast

from driftq.storage.blocks.frame import HEAD_BYTES, HEADER, SUM, add_salt

_COPIED_MAX = 1 << 16
"""Frames up to this size are copied to be given their salt. Of larger ones only the header is."""


def salted(buffers: Sequence[bytes | memoryview], salt: int) -> list[bytes]:
    """Return what to write for some buffers of frames: the same bytes, with the salt in each header's checksum.

    A buffer that can be written to gets the salt in place.
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
    """Return the frames of a large buffer, of which only the headers are copied."""
    pieces: list[bytes] = []
    place = 0
    while place < len(view):
        end = place + 8 + int.from_bytes(view[place + 4 : place + 8], "little")
        head_sum = SUM.unpack_from(view, place + HEADER.size)[0] ^ salt
        header = b"".join((view[place : place + HEADER.size], SUM.pack(head_sum)))
        pieces += (header, cast("bytes", view[place + HEAD_BYTES : end]))
        place = end
    return pieces
