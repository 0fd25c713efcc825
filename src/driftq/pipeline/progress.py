"""Where each query stands, told to the server as a named cursor: `spark:<name or id of the query>`.

So its lag is seen where every other reader's is: in the list of cursors, in the metrics, in the console. Told after
each batch that Spark has committed. A server that does not answer costs the visible lag and nothing else.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.offsets import Places, decode
from driftq.pipeline.wire import Wire

_ODD = re.compile(r"[^A-Za-z0-9._:>-]")
_NAME_MAX = 255


def cursor_name(query_name: str | None, query_id: str) -> str:
    """The cursor of a query, within the grammar of names."""
    return _ODD.sub("-", f"spark:{query_name or query_id}")[:_NAME_MAX]


def places_in(text: object) -> Places:
    """The places in an offset of a progress report, if it is one of ours."""
    try:
        offset = json.loads(text) if isinstance(text, str) else text
        return decode(offset) if isinstance(offset, Mapping) else {}
    except (ValueError, PipelineError):
        return {}


class CursorListener(StreamingQueryListener):
    """Moves the cursors of a session's queries."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """After a batch."""
        progress = event.progress
        for source in progress.sources:
            self.tell(cursor_name(progress.name, str(progress.id)), source.endOffset, progress.batchId)

    def tell(self, cursor: str, offset: object, batch: int) -> None:
        """Move a cursor to an offset; in a topic that has been made again since, there is nothing to move.

        It goes back, too: a query of the same name with a new checkpoint begins anew.
        """
        for topic, place in places_in(offset).items():
            place_now = {"seq": place.seq, "epoch": place.epoch, "rewind": True}
            value: dict[str, Any] = {**place_now, "meta": {"batch": str(batch)}}
            try:
                self._wire.put(self._wire.topic_path(topic, "cursors", cursor), value, patient=False)
            except PipelineError:
                continue

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing yet."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """It stands where it stood."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Its cursor stays, and shows how far behind it falls."""
