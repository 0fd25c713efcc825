"""A group of consumers of one topic: its streams, its lanes, and whose turn it is.

Streams take turns in the order in which they came, over first deliveries and repeats alike; partitions that may have
something to hand out take turns too. A lane that turns out to have nothing leaves the round, and comes back when
something happens to it: so a round costs what it delivers, however many partitions and messages there are.
"""

from collections.abc import Callable

from driftq.features.broker.protocols import ConsumerOutlet, OutgoingMessage
from driftq.features.broker.state.broker_frames import LaneState
from driftq.features.broker.state.group_partition import Lane
from driftq.features.broker.state.message_index import Index

_GATHERED_MAX = 32
_GATHERED_BYTES_MAX = 16 << 10


class ConsumerStream:
    """A consumer's connection in its group."""

    def __init__(
        self, group: "ConsumerGroup", owner: str, outlet: ConsumerOutlet, lease_ms: int, credit: int, name: str = ""
    ) -> None:
        self.group = group
        self.owner = owner
        self.name = name
        """What its client calls it; "" is no name."""
        self.outlet = outlet
        self.lease_ms = lease_ms
        self.held = 0
        """Live leases that count here."""
        self.credit = credit
        """How many it may hold; 0: any number."""
        self._gathered: list[OutgoingMessage] = []
        self._gathered_bytes = 0

    def takes(self) -> bool:
        """Can it be given another message?"""
        # An outlet that was ready before the first message of this turn is, until it is handed what was gathered.
        return (not self.credit or self.held < self.credit) and (bool(self._gathered) or self.outlet.ready())

    def give(self, delivery: OutgoingMessage, size: int) -> None:
        """Take a message for the outlet, which gets it with others: at the latest when `hand_over` is called.

        An outlet says whether there is room without knowing of them, so they are few.
        """
        self._gathered.append(delivery)
        self._gathered_bytes += size
        if len(self._gathered) >= _GATHERED_MAX or self._gathered_bytes >= _GATHERED_BYTES_MAX:
            self.hand_over()

    def hand_over(self) -> None:
        """Hand the outlet what it has not got yet."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if gathered:
            self.outlet.deliver(gathered)

    def wake(self) -> None:
        """Its outlet takes lines again."""
        self.group.ask()

    def detach(self) -> None:
        """The connection is gone; what was handed to it stays leased."""
        self.group.leave(self)


class ConsumerGroup:
    """(topic, group)."""

    def __init__(self, name: str, index: Index, ask: "Callable[[ConsumerGroup], None]", now: Callable[[], int]) -> None:
        self.name = name
        self.index = index
        self.lanes: dict[int, Lane] = {}
        self.streams: list[ConsumerStream] = []
        self.left_at: int | None = None
        """When the last stream left; None while there is one, or where there never was."""
        self.round: dict[int, None] = {}
        """Partitions that may have something to hand out, in the order of their turns."""
        self.done = 0
        """Messages that are done, in all partitions; what retention took may be among them."""
        self.moved = False
        """Was it put somewhere, now or before the checkpoint? Then it is known, even where it has done nothing."""
        self.turn = 0
        self._ask = ask
        self._now = now

    def lane(self, partition: int, *, live: bool = True) -> Lane:
        """The group in one partition."""
        lane = self.lanes.get(partition)
        if lane is None:
            lane = self.lanes[partition] = Lane(partition, self.index, live=live)
        return lane

    def ask(self) -> None:
        """Hand out what can be, in a turn of its own."""
        if self.streams:
            self._ask(self)

    def stir(self, partition: int) -> None:
        """Something happened in a partition that may let it go on."""
        if self.streams:
            self.round[partition] = None
            self._ask(self)

    def join(self, stream: ConsumerStream) -> None:
        """A new stream."""
        self.streams.append(stream)
        self.left_at = None
        for partition, part in enumerate(self.index.parts):
            if part.count:
                self.round[partition] = None
        self._ask(self)

    def leave(self, stream: ConsumerStream) -> None:
        """It is gone; whose turn it was keeps it."""
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
        """Let the streams of this owner and name leave, and end; return how many there were."""
        ending = [stream for stream in self.streams if (stream.owner, stream.name) == (owner, name)]
        for stream in ending:
            self.leave(stream)
            stream.outlet.end()
        return len(ending)

    def next_stream(self, owner: str | None = None) -> ConsumerStream | None:
        """Whose turn it is among those that take a message, and, where it is somebody's alone, are of that owner."""
        count = len(self.streams)
        for step in range(count):
            place = (self.turn + step) % count
            stream = self.streams[place]
            if (owner is None or stream.owner == owner) and stream.takes():
                return stream
        return None

    def took(self, stream: ConsumerStream) -> None:
        """It has had its turn."""
        streams = self.streams
        self.turn = (streams.index(stream) + 1) % len(streams) if len(streams) > 1 else 0

    def idle_ms(self) -> int:
        """How long there has been no stream."""
        return self._now() - self.left_at if self.left_at is not None else 0

    def capture(self) -> list[LaneState]:
        """Every lane that has anything to keep."""
        lanes = [lane for _, lane in sorted(self.lanes.items())]
        return [lane.capture() for lane in lanes if lane.count or lane.retries or lane.done.last >= 0]

    def restore(self, states: list[LaneState]) -> None:
        """And back."""
        self.moved = not states
        for state in states:
            self.lanes[state.partition] = Lane.of(state, self.index)
