"""The tags of a row group of a cold segment, for its footer: each tag once, and a number per row.

    [[tag or null, ...], base64 of zlib of the numbers, u8 each, or u16 where there are more than 256 tags]

The number of row `r` is the index of its tag in the list; null is for rows without a tag. A group whose distinct tags
take more than 16 KiB has no such entry (null): its tags must be read from its rows. See `docs/formats/cold.md`.
"""

import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from msgspec import DecodeError, Struct, json

Column: TypeAlias = "bytearray | array[int]"
"""A number per row, of one byte or of two."""
_TAG_BYTES_MAX = 16 << 10
_TAG_COST = 4
"""Bytes that a tag takes in JSON in addition to its own, at least."""
_NARROW_MAX = 256


class TagCodes(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The tags of one row group, in the form of the footer."""

    tags: list[str | None]
    packed: bytes

    def numbered(self, count: int, numbers: Mapping[bytes, int], *, wide: bool) -> "Column | None":
        """Return the number in `numbers` of each row's tag, for `count` rows.

        Returns None if a row has no tag or a tag that is not in `numbers`, or if the entry is damaged.
        """
        known = [numbers.get(b"" if tag is None else tag.encode(), -1) for tag in self.tags]
        if -1 in known or None in self.tags:
            return None
        try:
            codes = zlib.decompress(self.packed)
        except zlib.error:
            return None
        rows: Sequence[int] = array("H", codes) if len(self.tags) > _NARROW_MAX and not len(codes) % 2 else codes
        if len(rows) != count or max(rows, default=0) >= len(known):
            return None
        if wide or not isinstance(rows, bytes):
            found = [known[code] for code in rows]
            return array("H", found) if wide else bytearray(found)
        return bytearray(rows.translate(bytes(known).ljust(_NARROW_MAX, b"\0")))


_decoder = json.Decoder(list[TagCodes | None])


def tag_codes(tags: Iterable[bytes | None]) -> TagCodes | None:
    """Return the tags of the rows of a group, or None if they take more than 16 KiB."""
    places: dict[bytes | None, int] = {}
    codes: list[int] = []
    size = 0
    for tag in tags:
        place = places.get(tag)
        if place is None:
            place = places[tag] = len(places)
            size += _TAG_COST + len(tag or b"")
            if size > _TAG_BYTES_MAX:
                return None
        codes.append(place)
    packed = array("H", codes).tobytes() if len(places) > _NARROW_MAX else bytes(codes)
    return TagCodes([None if tag is None else tag.decode() for tag in places], zlib.compress(packed))


def decode_codes(content: bytes) -> list[TagCodes | None] | None:
    """Return the entries of a footer, or None if they cannot be read."""
    try:
        return _decoder.decode(content)
    except DecodeError:
        return None
