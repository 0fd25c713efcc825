"""The part of a lake for one topic: files for Spark, the seqs of each epoch, and losses before archiving.

Seqs and gaps are read once and kept. If the archive has grown meanwhile, `refresh` makes the next call read them again.
"""

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.replay.replay_plan import Archived
from driftq.pipeline.lake.delta_tables import Lake, LakeTable
from driftq.pipeline.lake.lake_owner import owner_of
from driftq.pipeline.lake.seq_sets import Seqs
from driftq.pipeline.lake.table_layout import BAD_RECORDS, GAPS
from driftq.pipeline.source.split_plan import SeqGap

_SPECIAL = re.compile(r"([\\{}\[\]*?])")
_SAMPLE = 1024


class TopicArchive:
    """The archive of one topic. Empty without a lake."""

    def __init__(self, lake: str | None, topic: str) -> None:
        self._lake = None if lake is None else Lake(lake)
        self._topic = topic
        self._epochs: dict[int, Archived] | None = None

    def paths(self) -> list[str]:
        """Return the files that may have records of the topic, escaped because Spark treats paths as patterns."""
        return [as_path(file) for file in self._files()]

    def of(self, epoch: int) -> Archived | None:
        """Return what the archive has of an epoch. None if there is no archive at all."""
        return self._read().get(epoch, Archived(Seqs())) if self._files() else None

    def server_id(self) -> str:
        """Return the id of the server whose topics are in the lake; empty if it is unknown."""
        return "" if self._lake is None else owner_of(self._lake) or ""

    def newest(self) -> int | None:
        """Return the newest epoch with records, or None."""
        return max((epoch for epoch, one in self._read().items() if len(one.seqs)), default=None)

    def refresh(self) -> None:
        """Read the archive again on the next call, since it may have grown."""
        self._epochs = None

    def record_bytes(self) -> float:
        """Estimate the data bytes of a record from the start of the largest file; 0 if there is no file."""
        largest = max(self._files(), key=lambda file: Path(file).stat().st_size, default=None)
        if largest is None:
            return 0.0
        with pq.ParquetFile(largest) as file:
            sample = next(file.iter_batches(_SAMPLE, columns=["data"]), None)
        return 0.0 if sample is None or not len(sample) else sample.nbytes / len(sample)

    def _files(self) -> list[str]:
        return [file for table in self._tables() for file in table.files()]

    def _tables(self) -> list[LakeTable]:
        """Return the topic's own table, the shared tables, and the table of unreadable archived records."""
        if self._lake is None:
            return []
        own = self._lake.topic(self._topic).path
        found = [table for table in self._lake.archives() if table.path == own or table.path.parent != own.parent]
        return [*found, self._lake.table("bad_records", BAD_RECORDS)]

    def _read(self) -> dict[int, Archived]:
        if self._epochs is None:
            try:
                seqs, gaps = self._seqs(), self._gaps()
            except FileNotFoundError as gone:
                raise PipelineError(f"a file of the archive of topic {self._topic!r} is missing: {gone}") from gone
            self._epochs = {epoch: Archived(seqs[epoch], tuple(gaps[epoch])) for epoch in {*seqs, *gaps}}
        return self._epochs

    def _seqs(self) -> dict[int, Seqs]:
        found: dict[int, Seqs] = defaultdict(Seqs)
        for table in self._tables():
            for batch in table.dataset().to_batches(columns=["topic", "epoch", "seq"]):
                named = batch.filter(pc.equal(batch["topic"], self._topic))
                for epoch in pc.unique(named["epoch"]).to_pylist():
                    seqs = named.filter(pc.equal(named["epoch"], epoch))["seq"]
                    found[epoch].add(seqs.to_numpy(zero_copy_only=False).astype(np.int64))
        return found

    def _gaps(self) -> dict[int, list[SeqGap]]:
        found: dict[int, list[SeqGap]] = defaultdict(list)
        if self._lake is not None:
            for row in self._lake.table("gaps", GAPS).read().to_pylist():
                if row["topic"] == self._topic:
                    found[row["epoch"]].append(SeqGap(row["gap_from"], row["gap_to"], row["reason"]))
        return found


def as_path(file: str) -> str:
    """Escape a path so that Spark takes every character literally."""
    return _SPECIAL.sub(r"\\\1", file)
