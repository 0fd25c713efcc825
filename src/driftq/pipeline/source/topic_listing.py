"""Topics as the driver sees them for a read: which exist, their files, and where reading starts and ends.

One request to the server answers for up to 1000 topics (http-v0 §22.2), so many small topics cost little more than one.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from driftq.pipeline.errors import AbsentError, PipelineError
from driftq.pipeline.offsets import TopicOffset
from driftq.pipeline.server_connection import AnswerError, Wire
from driftq.pipeline.source.read_options import ReadOptions, Starts
from driftq.pipeline.source.split_plan import SeqGap, TopicFiles, gaps_in, manifest_of

_PAGE = 1000
_LITERAL = re.compile(r"(?:[A-Za-z0-9_@:-]|\\[^A-Za-z0-9])*")
"""The start of a regular expression that matches only itself."""


class TopicListing:
    """The topics of one read, as the options select them."""

    def __init__(self, wire: Wire, options: ReadOptions) -> None:
        self._wire = wire
        self._options = options
        self.ahead: set[str] | None = None
        """Topics where the query starts above the head, as the options ask. None before `initial` has run."""

    def fits(self, topic: str) -> bool:
        """Whether the options name the topic, or it matches the pattern."""
        if self._options.pattern is None:
            return topic in self._options.topics
        return re.fullmatch(self._options.pattern, topic) is not None

    def all(self) -> dict[str, TopicFiles]:
        """Return the manifests of the existing topics that the options name, or that match the pattern now."""
        if self._options.pattern is None:
            return self.of(self._options.topics)
        question: dict[str, Any] = {"prefix": literal_start(self._options.pattern), "page_size": _PAGE}
        found: dict[str, TopicFiles] = {}
        while True:
            page = self._ask(question)
            found |= {manifest.topic: manifest for manifest in _manifests(page) if self.fits(manifest.topic)}
            if not page.get("next_cursor"):
                return found
            question["cursor"] = page["next_cursor"]

    def wanted(self) -> list[TopicFiles]:
        """Return the manifests of all topics of the read. Raises AbsentError if one does not exist, or none matches."""
        found = self.all()
        for name in self._options.topics:
            if name not in found:
                raise AbsentError(
                    f"there is no topic {name!r} on {self._wire.server}: create it, or check its name and the server"
                )
        if not found and not self._options.allow_empty:
            raise AbsentError(
                f"no topic on {self._wire.server} matches {self._options.pattern!r}: check pattern and server, or set "
                "allowEmpty=true (for a job, --allow-empty) to read nothing until there is one"
            )
        return list(found.values())

    def of(self, topics: Iterable[str]) -> dict[str, TopicFiles]:
        """Return the manifests of these topics; topics that do not exist are left out."""
        names = list(topics)
        found: dict[str, TopicFiles] = {}
        for at in range(0, len(names), _PAGE):
            page = self._ask({"topics": names[at : at + _PAGE]})
            found |= {manifest.topic: manifest for manifest in _manifests(page)}
        return {name: found[name] for name in names if name in found}

    def ends_of_live(self, after: Mapping[str, tuple[int, int]]) -> dict[str, int]:
        """Return the seq of the last of the next live records: `after` has a seq and a number of records by topic."""
        names = list(after)
        found: dict[str, int] = {}
        for at in range(0, len(names), _PAGE):
            part = names[at : at + _PAGE]
            starts = {name: {"seq": after[name][0], "records": after[name][1]} for name in part}
            page = self._ask({"topics": part, "after": starts})
            found |= {row["topic"]: row["reach_seq"] for row in page["topics"]}
        return found

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._wire.post("/v0/segments", question)
        except AnswerError as error:
            raise PipelineError(
                f"the topics cannot be read from {self._wire.server}: {error.said}: {error.message}"
            ) from None

    def begin(self, manifest: TopicFiles) -> int:
        """Return the cursor before the first wanted record.

        `earliest` is the first retained record. A reader that gets losses as rows starts at 0 instead, so that it also
        gets the earlier losses.
        """
        since = self._since(manifest.topic)
        if since is not None:
            if manifest.last_ts is None or manifest.last_ts < since:
                if self._options.late_start_fails:
                    raise PipelineError(
                        f"topic {manifest.topic!r} has no record at {since} ms or later: set an earlier time in "
                        "startingOffsetsByTimestamp, or startingOffsetsByTimestampStrategy=latest"
                    )
                return manifest.head
            return self.seek(manifest.topic, since)
        place = _place(self._options.start, manifest.topic, "earliest")
        if place == "earliest":
            return 0 if self._options.on_data_loss == "rows" else manifest.earliest - 1
        return manifest.head if place == "latest" else max(0, int(place) - 1)

    def _since(self, topic: str) -> int | None:
        """Return the time to read the topic from, if the options set one."""
        return self._options.start_ts.get(topic, self._options.not_before)

    def begin_later(self, manifest: TopicFiles) -> int:
        """Return the cursor before the first wanted record, for a topic that appears while the query runs.

        A topic that newly matches a pattern is read from its beginning, unless the options set a seq or a time.
        """
        chosen = self._since(manifest.topic) is not None or not isinstance(self._options.start, str)
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
        for manifest in self.wanted():
            begin = self.begin(manifest)
            if begin > manifest.head:
                self.ahead.add(manifest.topic)
            found[manifest.topic] = TopicOffset(manifest.epoch, begin, began=begin, server_id=manifest.server_id)
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


def literal_start(pattern: str) -> str:
    """Return the text that every name starts with that a regular expression matches."""
    found = _LITERAL.match(pattern)
    assert found is not None, "the expression matches the empty text"
    start = found[0]
    rest = pattern[len(start) :]
    if "|" in rest:
        return ""
    if rest[:1] in ("*", "?", "{"):
        start = start[: -2 if start[-2:-1] == "\\" else -1]
    return start.replace("\\", "")


def _manifests(page: Mapping[str, Any]) -> Iterator[TopicFiles]:
    shared = {key: page[key] for key in ("server_id", "hot_root", "cold_root")}
    return (manifest_of(row | shared) for row in page["topics"])


def _place(places: Starts, topic: str, default: str) -> str | int:
    if isinstance(places, str):
        return places
    return places.get(topic, places.get("*", default))
