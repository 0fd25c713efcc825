"""Messages that are likely to be handed out soon, as they were decoded: the newest of topics that somebody consumes,
and what was read ahead of a backlog.

It is a cache over what is committed: a message that is not in it is read from its block. It holds so many bytes for the
whole broker; the first in is the first out.
"""

from driftq.features.broker.state.stored_messages import Read, to_data

BYTES_MAX = 16 << 20
_OWN_BYTES = 512
"""What a message takes beside what is stored of it, about."""


class Recent:
    """Messages by topic and offset."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: dict[tuple[int, int], tuple[Read, int]] = {}
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, topic_id: int, offset: int) -> Read | None:
        """A message, if it is here."""
        found = self._kept.get((topic_id, offset))
        return None if found is None else found[0]

    def put(self, topic_id: int, offset: int, found: Read) -> None:
        """Keep a message."""
        if (topic_id, offset) in self._kept:
            return
        # An envelope may be far longer than the text it is around.
        size = found.stored_size
        weight = _OWN_BYTES + (len(to_data(found.message)) if size is None else size)
        self._kept[topic_id, offset] = found, weight
        self._size += weight
        while self._size > self._bytes_max:
            oldest = next(iter(self._kept))
            self._size -= self._kept.pop(oldest)[1]
