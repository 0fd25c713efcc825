"""Topics as the driver sees them for a read: which exist, their files, and where reading starts and ends."""

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from driftq.pipeline.errors import AbsentError, PipelineError
from driftq.pipeline.offsets import TopicOffset
from driftq.pipeline.server_connection import AnswerError, Wire
from driftq.pipeline.source.read_options import ReadOptions, Starts
from driftq.pipeline.source.split_plan import SeqGap, TopicFiles, gaps_in, manifest_of

_PAGE = 1000


class TopicListing:
    """The topics of one read, as the options select them."""

    def __init__(self, wire: Wire, options: ReadOptions) -> None:
        self._wire = wire
        self._options = options
        self.ahead: set[str] | None = None
        """Topics where the query starts above the head, as the options ask. None before `initial` has run."""

    def names(self) -> list[str]:
        """Return the topics that the options name, or those that match the pattern now."""
        if self._options.pattern is None:
            return list(self._options.topics)
        return [name for name in self._all() if self.fits(name)]

    def fits(self, topic: str) -> bool:
        """Whether the options name the topic, or it matches the pattern."""
        if self._options.pattern is None:
            return topic in self._options.topics
        return re.fullmatch(self._options.pattern, topic) is not None

    def _all(self) -> Iterable[str]:
        cursor = ""
        while True:
            page = self._wire.get(f"/v0/topics?page_size={_PAGE}&cursor={quote(cursor, safe='')}")
            yield from (row["topic"] for row in page["topics"])
            cursor = page.get("next_cursor") or ""
            if not cursor:
                return

    def find(self, topic: str) -> TopicFiles | None:
        """Return the manifest of a topic, or None if it does not exist.

        The request for the topic's state comes first, because it brings a topic that routers fill up to date.
        """
        try:
            state = self._wire.get(self._wire.topic_path(topic) + "?touch=false")
            manifest = manifest_of(self._wire.get(self._wire.topic_path(topic, "segments")))
            return manifest._replace(record_bytes=state["bytes"] // max(1, state["count"]))
        except AnswerError as error:
            if error.said == "topic_not_found":
                return None
            raise PipelineError(f"topic {topic!r} cannot be read: {error.said}: {error.message}") from None

    def get(self, topic: str) -> TopicFiles:
        """Return the manifest of a topic. Raises AbsentError if it does not exist."""
        found = self.find(topic)
        if found is None:
            raise AbsentError(
                f"there is no topic {topic!r} on {self._wire.server}: create it, or check its name and the server"
            )
        return found

    def begin(self, manifest: TopicFiles) -> int:
        """Return the cursor before the first wanted record.

        `earliest` is the first retained record. A reader that gets losses as rows starts at 0 instead, so that it also
        gets the earlier losses.
        """
        if self._options.start_ts is not None:
            return self.seek(manifest.topic, self._options.start_ts)
        place = _place(self._options.start, manifest.topic, "earliest")
        if place == "earliest":
            return 0 if self._options.on_data_loss == "rows" else manifest.earliest - 1
        return manifest.head if place == "latest" else max(0, int(place) - 1)

    def begin_later(self, manifest: TopicFiles) -> int:
        """Return the cursor before the first wanted record, for a topic that appears while the query runs.

        A topic that newly matches a pattern is read from its beginning, unless the options set a seq or a time.
        """
        chosen = self._options.start_ts is not None or not isinstance(self._options.start, str)
        return self.begin(manifest) if chosen or self._options.pattern is None else 0

    def end(self, manifest: TopicFiles) -> int:
        """Return the last wanted seq of the topic."""
        if self._options.end_ts is not None:
            return self.seek(manifest.topic, self._options.end_ts)
        place = _place(self._options.end, manifest.topic, "latest")
        if place == "earliest":
            return manifest.earliest - 1
        return manifest.head if place == "latest" else min(int(place), manifest.head)

    def initial(self) -> dict[str, TopicOffset]:
        """Return the offset where a new query starts."""
        found = {}
        self.ahead = set()
        for name in self.names():
            manifest = self.get(name)
            begin = self.begin(manifest)
            if begin > manifest.head:
                self.ahead.add(name)
            found[name] = TopicOffset(manifest.epoch, begin, began=begin, server_id=manifest.server_id)
        return found

    def seek(self, topic: str, ts: int) -> int:
        """Return the cursor before the first record with this time (Unix ms) or a later one (http-v0 §22.3)."""
        page = self._wire.post(self._wire.topic_path(topic, "diff"), {"from_ts": ts, "limit": 1})
        records: list[dict[str, Any]] = page["records"]
        return int(records[0]["$seq"]) - 1 if records else int(page["head_seq"])

    def gaps(self, manifest: TopicFiles, start: int, end: int) -> list[SeqGap]:
        """Return the lost seqs of a range."""
        reason = "cap"
        if start + 1 < manifest.evict_floor and start < end:
            page = self._wire.post(self._wire.topic_path(manifest.topic, "diff"), {"from_seq": start, "limit": 1})
            reason = (page["tombstone"] or {}).get("reason", reason)
        return gaps_in(manifest, start, end, reason)


def _place(places: Starts, topic: str, default: str) -> str | int:
    if isinstance(places, str):
        return places
    return places.get(topic, places.get("*", default))
