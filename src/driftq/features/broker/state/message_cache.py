"""A cache of decoded messages that will probably be delivered soon: the newest messages of topics with consumers, and
messages that were read ahead of a backlog.

The cache contains only committed messages. A message that is not in it is read from its block. Its size limit in bytes
applies to the whole broker; the oldest entry is removed first.
"""

from collections import OrderedDict

from driftq.features.broker.state.stored_messages import Read, to_data

BYTES_MAX = 16 << 20
_OWN_BYTES = 512
"""The approximate size of a cached message in bytes, without its stored JSON."""


class MessageCache:
    """Cached messages, by topic id and offset."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        # A plain dict finds its oldest entry slowly after many removals at its start.
        self._kept: OrderedDict[tuple[int, int], tuple[Read, int]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, topic_id: int, offset: int) -> Read | None:
        """Return a cached message, or None."""
        found = self._kept.get((topic_id, offset))
        return None if found is None else found[0]

    def put(self, topic_id: int, offset: int, found: Read) -> None:
        """Add a message to the cache."""
        if (topic_id, offset) in self._kept:
            return
        # An envelope may be much longer than key and value.
        size = found.stored_size
        weight = _OWN_BYTES + (len(to_data(found.message)) if size is None else size)
        self._kept[topic_id, offset] = found, weight
        self._size += weight
        while self._size > self._bytes_max:
            _, (_, gone) = self._kept.popitem(last=False)
            self._size -= gone
