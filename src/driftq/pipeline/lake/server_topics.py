"""Implements `archive_check.Live` for a server: the ranges of its topics, and their records as Arrow pages."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from driftq.client import NotFoundError
from driftq.pipeline.lake.archive_check import TopicExtent

if TYPE_CHECKING:
    from driftq.client import Client


class ServerTopics:
    """The topics of a server, for the archive check."""

    def __init__(self, client: "Client") -> None:
        self._client = client

    def standing(self, topic: str) -> TopicExtent | None:
        """Return the range of a topic, or None if it does not exist."""
        try:
            found = self._client.topic(topic).segments()
        except NotFoundError:
            return None
        return TopicExtent(found.epoch, found.earliest_seq, found.head_seq, found.server_id)

    def server_id(self) -> str | None:
        """Return the id of the server, or None while it has no topic: only the manifest of a topic contains the id."""
        standings = (self.standing(row.topic) for row in self._client.topics())
        return next((standing.server_id for standing in standings if standing is not None), None)

    def pages(self, topic: str, first: int, last: int) -> Iterator[pa.Table]:
        """Yield the records from `first` to `last`, page by page."""
        if last < first:
            return
        for page in self._client.topic(topic).arrow_pages(max(0, first - 1)):
            seqs = page["seq"].cast(pa.int64())
            yield page.set_column(page.schema.get_field_index("seq"), "seq", seqs).filter(pc.less_equal(seqs, last))
            if len(seqs) and seqs[-1].as_py() >= last:
                return
