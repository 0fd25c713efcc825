"""Finds where a new query starts: after the records that its table already has, to avoid useless reads.

This only saves work. Every batch leaves out rows that the table already has, wherever the query started.
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
    """Return the topics that the source options name, or those that match the pattern now."""
    if "topics" in options:
        return options["topics"].split(",")
    fits = re.compile(options["topicPattern"]).fullmatch
    return [row.topic for row in client.topics() if fits(row.topic)]


def starting(topics: list[str], live: Live, checkpoint: Path, table_of: Callable[[str], LakeTable]) -> str:
    """Return `startingSeq` for the source: for each topic the seq after those in its table, else `earliest`.

    Raises PipelineError if a topic has lost its end: its new records have the same seqs as other records in the table.
    """
    begins: dict[str, int] = {}
    for topic in [] if has_begun(checkpoint) else topics:
        standing = live.standing(topic)
        mark = 0 if standing is None else table_of(topic).mark(topic, standing.epoch)
        if standing is None or not mark:
            continue
        if mark > standing.head:
            raise PipelineError(
                f"topic {topic!r} ends at seq {standing.head}, but the lake has it up to seq {mark}: it lost its end. "
                "Use another --lake, or delete the topic and create it again"
            )
        begins[topic] = mark + 1
    return json.encode(begins).decode() if begins else "earliest"
