"""A group of consumers of one topic: its streams, its partitions, and the order of their turns.

Streams take turns in the order in which they joined, for first deliveries and repeats alike. Partitions that may have
messages to deliver take turns too. A partition without such a message leaves the round, and returns when it changes.
The cost of a round therefore depends on its deliveries, not on the number of partitions and messages.
"""

from collections.abc import Callable

from driftq.features.broker.protocols import ConsumerOutlet, OutgoingMessage
from driftq.features.broker.state.broker_frames import GroupPartitionState
from driftq.features.broker.state.group_partition import GroupPartition
from driftq.features.broker.state.message_index import Index

_GATHERED_MAX = 32
_GATHERED_BYTES_MAX = 16 << 10


class ConsumerStream:
    """The connection of one consumer in its group."""

    def __init__(
        self, group: "ConsumerGroup", owner: str, outlet: ConsumerOutlet, lease_ms: int, credit: int, name: str = ""
    ) -> None:
        self.group = group
        self.owner = owner
        self.name = name
        """The name that the client gave the stream; "" means none."""
        self.outlet = outlet
        self.lease_ms = lease_ms
        self.held = 0
        """How many valid leases count against its credit."""
        self.credit = credit
        """How many leases it may hold; 0 means any number."""
        self._gathered: list[OutgoingMessage] = []
        self._gathered_bytes = 0

    def takes(self) -> bool:
        """Whether the stream accepts another message."""
        # An outlet that was ready before the first gathered message stays ready until it gets the gathered ones.
        return (not self.credit or self.held < self.credit) and (bool(self._gathered) or self.outlet.ready())

    def give(self, delivery: OutgoingMessage, size: int) -> None:
        """Add a message for the outlet, which gets it together with others, at the latest in `hand_over`.

        The outlet's `ready` does not include gathered messages, so only a few are gathered.
        """
        self._gathered.append(delivery)
        self._gathered_bytes += size
        if len(self._gathered) >= _GATHERED_MAX or self._gathered_bytes >= _GATHERED_BYTES_MAX:
            self.hand_over()

    def hand_over(self) -> None:
        """Send the gathered messages to the outlet."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if gathered:
            self.outlet.deliver(gathered)

    def wake(self) -> None:
        """Ask for a turn, because the outlet accepts lines again."""
        self.group.ask()

    def detach(self) -> None:
        """Leave the group, because the connection closed. Messages delivered to it stay leased."""
        self.group.leave(self)


class ConsumerGroup:
    """One group of consumers of one topic."""

    def __init__(self, name: str, index: Index, ask: "Callable[[ConsumerGroup], None]", now: Callable[[], int]) -> None:
        self.name = name
        self.index = index
        self.group_partitions: dict[int, GroupPartition] = {}
        self.streams: list[ConsumerStream] = []
        self.left_at: int | None = None
        """When the last stream left; None while there is one, or if there never was one."""
        self.round: dict[int, None] = {}
        """Partitions that may have messages to deliver, in the order of their turns."""
        self.done = 0
        """The number of done messages in all partitions; it may include messages that retention has removed."""
        self.moved = False
        """Whether a seek has moved the group, in this run or before. Such a group is kept even if no
        message is done.
        """
        self.turn = 0
        self._ask = ask
        self._now = now

    def group_partition(self, partition: int, *, live: bool = True) -> GroupPartition:
        """Return the state of the group in one partition; create it if needed."""
        group_partition = self.group_partitions.get(partition)
        if group_partition is None:
            group_partition = self.group_partitions[partition] = GroupPartition(partition, self.index, live=live)
        return group_partition

    def ask(self) -> None:
        """Request a turn in which messages are delivered."""
        if self.streams:
            self._ask(self)

    def stir(self, partition: int) -> None:
        """Put a partition into the round and request a turn, because it may have a message to deliver."""
        if self.streams:
            self.round[partition] = None
            self._ask(self)

    def join(self, stream: ConsumerStream) -> None:
        """Add a stream, and put all partitions with messages into the round."""
        self.streams.append(stream)
        self.left_at = None
        for partition, part in enumerate(self.index.parts):
            if part.count:
                self.round[partition] = None
        self._ask(self)

    def leave(self, stream: ConsumerStream) -> None:
        """Remove a stream. The turn stays with the stream that has it."""
        if stream not in self.streams:
            return
        place = self.streams.index(stream)
        del self.streams[place]
        if place < self.turn:
            self.turn -= 1
        if not self.streams:
            self.left_at = self._now()
            self.round.clear()

    def end(self, owner: str, name: str) -> int:
        """Remove and end the streams with this owner and name. Return how many there were."""
        ending = [stream for stream in self.streams if (stream.owner, stream.name) == (owner, name)]
        for stream in ending:
            self.leave(stream)
            stream.outlet.end()
        return len(ending)

    def next_stream(self, owner: str | None = None) -> ConsumerStream | None:
        """Return the next stream that accepts a message, or None; with `owner`, only a stream of that owner."""
        count = len(self.streams)
        for step in range(count):
            place = (self.turn + step) % count
            stream = self.streams[place]
            if (owner is None or stream.owner == owner) and stream.takes():
                return stream
        return None

    def took(self, stream: ConsumerStream) -> None:
        """Move the turn to the stream after this one."""
        streams = self.streams
        self.turn = (streams.index(stream) + 1) % len(streams) if len(streams) > 1 else 0

    def idle_ms(self) -> int:
        """Return for how many milliseconds the group has had no stream."""
        return self._now() - self.left_at if self.left_at is not None else 0

    def capture(self) -> list[GroupPartitionState]:
        """Return the state of every partition with something to keep."""
        group_partitions = [group_partition for _, group_partition in sorted(self.group_partitions.items())]
        return [
            group_partition.capture()
            for group_partition in group_partitions
            if group_partition.count or group_partition.retries or group_partition.done.last >= 0
        ]

    def restore(self, states: list[GroupPartitionState]) -> None:
        """Restore the state of the partitions from a checkpoint."""
        self.moved = not states
        for state in states:
            self.group_partitions[state.partition] = GroupPartition.of(state, self.index)
