"""Directory names made of names that users give: of topics, tables and pipelines.

No name becomes a path as it is. Lower-case letters, digits, `.`, `_` and `-` stay; every other byte is `~` and two hex
digits, a leading `.` or `_` too, so that two names never meet, not even where the file system knows no case.
A name too long for a directory keeps its beginning and gets its hash.
"""

import re
from hashlib import sha256

_PLAIN = re.compile(rb"[a-z0-9._-]")
_LENGTH_MAX = 200
_HEAD = 120


def directory_name(name: str) -> str:
    """The directory of something that is called so. The name must not be empty."""
    assert name, "a name that is empty has no directory"
    raw = name.encode()
    text = "".join(chr(byte) if _PLAIN.fullmatch(raw, at, at + 1) else f"~{byte:02x}" for at, byte in enumerate(raw))
    if text[0] in "._":
        text = f"~{ord(text[0]):02x}{text[1:]}"
    if len(text) <= _LENGTH_MAX:
        return text
    return f"{text[:_HEAD]}~~{sha256(raw).hexdigest()}"
