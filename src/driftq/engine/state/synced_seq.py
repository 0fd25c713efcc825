"""Which records of a topic are on stable storage."""

from driftq.engine.state.topic import Topic
from driftq.storage.wal.group_commit import Shard

_UNSYNCED_KEPT = 64


def note_unsynced(topic: Topic, shard: Shard, number: int, last_seq: int) -> None:
    """Note that seqs up to `last_seq` are on stable storage once the shard has synced submission `number`."""
    topic.unsynced.append((number, last_seq))
    if len(topic.unsynced) > _UNSYNCED_KEPT:
        synced_seq(topic, shard)


def synced_seq(topic: Topic, shard: Shard) -> int:
    """Return the highest seq that is known to be on stable storage."""
    unsynced = topic.unsynced
    while unsynced and unsynced[0][0] <= shard.synced_number:
        topic.synced_seq = unsynced.popleft()[1]
    if topic.lost_from is not None:
        return min(topic.synced_seq, topic.lost_from - 1)
    return topic.synced_seq
