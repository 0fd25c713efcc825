"""Where a stream stands: per topic the last seq it has read, in which life of the topic. Pure values; JSON for Spark.

    {"orders": {"epoch": 7, "seq": 1200, "began": 1000, "server_id": "dbdc…"}}

`began` is the seq that the query began behind. Spark asks for the initial offset again when a query that died in its
first batch comes back, and "latest" is another number by then; the journaled end of that batch still says where it
began, and wins. `lost` counts seqs that were skipped because they were lost (`onDataLoss=skip`).

A topic is in another life where its epoch is another, or the id of its server (epochs begin anew with a data directory,
and one that was restored is another history). So it is where the end lies below the start: a topic of class `ephemeral`
or `memory` comes back from a crash with a lower head and the same epoch.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from driftq.pipeline.errors import PipelineError


class TopicOffset(NamedTuple):
    """Where one topic is read up to, and including."""

    epoch: int
    seq: int
    began: int
    lost: int = 0
    server: str = ""
    """Where the topic is, if that is not the server of the session: who tells of a query's place must know."""
    server_id: str = ""
    """Which server's; empty in offsets that do not say so."""

    def lives_on_in(self, later: "TopicOffset") -> bool:
        """Is the topic in the same life there? Who has read nothing of a life has missed nothing of it."""
        if self.epoch != later.epoch or not same_server(self.server_id, later.server_id):
            return False
        return later.seq >= self.seq or self.seq == self.began


def same_server(one: str, other: str) -> bool:
    """May these be ids of the same server? What is not known is no difference."""
    return not one or not other or one == other


Places = dict[str, TopicOffset]
_SELDOM = ("lost", "server", "server_id")


def encode(places: Mapping[str, TopicOffset]) -> dict[str, dict[str, Any]]:
    """As Spark keeps it; the order of topics is fixed, since Spark compares texts."""
    return {
        topic: {key: value for key, value in places[topic]._asdict().items() if value or key not in _SELDOM}
        for topic in sorted(places)
    }


def decode(offset: Mapping[str, Any]) -> Places:
    """From what Spark kept. Raises PipelineError."""
    try:
        return {
            topic: TopicOffset(
                place["epoch"],
                place["seq"],
                place.get("began", place["seq"]),
                place.get("lost", 0),
                place.get("server", ""),
                place.get("server_id", ""),
            )
            for topic, place in offset.items()
        }
    except (TypeError, KeyError, AttributeError):
        raise PipelineError(
            "the checkpoint holds offsets of another source: give this query a checkpointLocation of its own"
        ) from None


class OffsetRange(NamedTuple):
    """What a batch reads of one topic: behind `start`, up to and including `end`, in one life of it."""

    topic: str
    epoch: int
    start: int
    end: int
    server_id: str = ""
    missed: TopicOffset | None = None
    """Where an earlier life of the topic was left, if it has been made again since."""


def ranges(start: Places, end: Places) -> list[OffsetRange]:
    """What lies between two offsets."""
    found = []
    for topic, stop in sorted(end.items()):
        place = start.get(topic)
        if place is None:
            found.append(OffsetRange(topic, stop.epoch, stop.began, stop.seq, stop.server_id))
        elif not place.lives_on_in(stop):
            found.append(OffsetRange(topic, stop.epoch, 0, stop.seq, stop.server_id, missed=place))
        else:
            begin = place.seq if place.began == stop.began else stop.began
            found.append(OffsetRange(topic, stop.epoch, begin, stop.seq, stop.server_id))
    return [part for part in found if part.end > part.start or part.missed is not None]


def within(most: int, most_bytes: int | None, sizes: Iterable[int]) -> int:
    """How many records a batch may have, if they were all as large as those of the topic with the largest."""
    largest = max(sizes, default=0)
    return most if most_bytes is None or not largest else max(1, min(most, most_bytes // largest))


def share(backlog: Mapping[str, int], budget: int | None) -> dict[str, int]:
    """How many seqs of each topic fit into a budget: the same for all, and what one does not need goes to the others.

    At least one where there is any, so that no topic waits for ever.
    """
    if budget is None or sum(backlog.values()) <= budget:
        return dict(backlog)
    given: dict[str, int] = {}
    left = budget
    for number, (topic, size) in enumerate(sorted(backlog.items(), key=lambda item: (item[1], item[0]))):
        given[topic] = min(size, max(1, left // (len(backlog) - number)))
        left = max(0, left - given[topic])
    return given


def lost_in(gaps: Iterable[tuple[int, int]]) -> int:
    """Seqs in gaps."""
    return sum(max(0, last - first + 1) for first, last in gaps)


class LateLosses:
    """Losses that are found when the offset which should count them is journaled: the next one counts them.

    Known by the offset that they are late for, so it does not matter how often a batch is planned.
    """

    def __init__(self) -> None:
        self._found: dict[str, tuple[TopicOffset, int]] = {}
        self._carried: dict[str, tuple[TopicOffset, int]] = {}

    def find(self, topic: str, start: TopicOffset | None, end: TopicOffset, gone: int) -> None:
        """A batch is planned, and so many of its seqs are gone by now."""
        before, again = (0, 0) if start is None else (start.lost, int(not start.lives_on_in(end)))
        counted = end.lost - before - again - _known(self._carried, topic, end)
        self._found[topic] = (end, max(0, gone - counted))

    def carry(self, topic: str, start: TopicOffset | None, end: TopicOffset) -> TopicOffset:
        """The end of the batch behind an offset, with what was late for that one."""
        late = _known(self._found, topic, start)
        end = end._replace(lost=end.lost + late)
        self._carried[topic] = (end, late)
        return end


def _known(counts: Mapping[str, tuple[TopicOffset, int]], topic: str, place: TopicOffset | None) -> int:
    at, count = counts.get(topic, (None, 0))
    return count if at == place else 0
