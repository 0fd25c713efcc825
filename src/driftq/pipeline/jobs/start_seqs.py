"""Where a new query begins: behind what its table has of each topic, so that nothing is read for nothing.

That is all it is for: what a table has is left out of every batch, wherever the query began.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import json

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.lake.archive_check import Live
from driftq.pipeline.lake.delta_tables import LakeTable
from driftq.pipeline.spark.query_checkpoint import has_begun

if TYPE_CHECKING:
    from driftq.client import Client


def chosen_now(client: "Client", options: dict[str, str]) -> list[str]:
    """The topics that the options of a source name, or that fit by now."""
    if "topics" in options:
        return options["topics"].split(",")
    fits = re.compile(options["topicPattern"]).fullmatch
    return [row.topic for row in client.topics() if fits(row.topic)]


def starting(topics: list[str], live: Live, checkpoint: Path, table_of: Callable[[str], LakeTable]) -> str:
    """`startingSeq` of the source: the next seq of each topic that its table has; else the first.

    Raises PipelineError where a topic has lost its end: what it gets now has the seqs of records in the table.
    """
    begins: dict[str, int] = {}
    for topic in [] if has_begun(checkpoint) else topics:
        standing = live.standing(topic)
        mark = 0 if standing is None else table_of(topic).mark(topic, standing.epoch)
        if standing is None or not mark:
            continue
        if mark > standing.head:
            raise PipelineError(
                f"topic {topic!r} ends at seq {standing.head}, and the lake has it up to {mark}: it has lost its end. "
                "Take another --lake, or delete the topic and make it anew"
            )
        begins[topic] = mark + 1
    return json.encode(begins).decode() if begins else "earliest"
