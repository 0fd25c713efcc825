"""The salt of a file in the frames that go there: the same bytes whoever owns them, copied only where they must be."""

import pytest

from driftq.storage.blocks.frame import Frame, Kind, encode_control, read_frame
from driftq.storage.wal import frame_salt as salting
from driftq.storage.wal.frame_salt import salted

SALT = 0x1234_5678_9ABC_DEF0
FRAMES = [encode_control(Kind.TIME_SEEN, bytes(size), topic_id=1, op=1, ts=1) for size in (1, 40, 300)]
CONTENT = b"".join(FRAMES)


def _starts(content: bytes) -> list[int]:
    """The starts of its frames, each of which is accepted with the salt."""
    starts, place = [], 0
    while place < len(content):
        frame = read_frame(content, place, len(content), SALT)
        assert isinstance(frame, Frame)
        starts.append(place)
        place = frame.end
    return starts


@pytest.mark.parametrize("copied_max", [0, len(FRAMES[1]), 1 << 16])
def test_frames_that_others_have_too_stay_as_they_are(copied_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salting, "_COPIED_MAX", copied_max)
    frames = [bytes(bytearray(frame)) for frame in FRAMES]
    content = b"".join(salted(frames, SALT))
    assert _starts(content) == [0, len(FRAMES[0]), len(FRAMES[0] + FRAMES[1])]
    assert frames == FRAMES
    assert b"".join(salted([memoryview(CONTENT)], SALT)) == content


def test_frames_in_memory_that_can_be_written_to_get_their_salt_there() -> None:
    received = bytearray(CONTENT)
    middle = len(FRAMES[0])
    views = [memoryview(received)[:middle], memoryview(received)[middle:]]
    pieces = salted(views, SALT)
    assert all(piece is view for piece, view in zip(pieces, views, strict=True))
    assert received == b"".join(salted(FRAMES, SALT))
    assert len(_starts(bytes(received))) == 3
