"""Reads every byte of a data directory and reports everything that is wrong with it. Changes nothing.

    checkpoints → the WAL under the newest → hot and cold segments, compared with it → staged parts → names

Invariants
- Every byte that a server relies on is protected by a checksum, by a second copy, or by a count in the checkpoint. All
  other bytes must be zero, and that is checked.
- At most one WAL file, one checkpoint or one block is in memory.
- A problem is a finding, not an exception: an unreadable file is a finding too, and verification continues.

Two losses cannot be detected: a missing staged part, because no other file names it; and whole frames cut off the end
of a log after the last proof of a sync. A graceful stop leaves no such end.
"""

import posixpath
import re
from collections.abc import Callable, Iterator

from msgspec import DecodeError

from driftq.engine.files.topic_checkpoint import SegmentState, TopicCheckpoint, decode_topic
from driftq.errors import NewerFormatError
from driftq.offline.findings import Finding, Verdict, VerificationReport
from driftq.offline.segment_check import ColdCheck, FlaggedRows, HotCheck, gone_rows
from driftq.offline.wal_check import WalWalk
from driftq.storage.blocks.block import Block
from driftq.storage.blocks.frame import Frame, Kind, read_frame
from driftq.storage.layout import Layout
from driftq.storage.part_file import read_head, read_rows
from driftq.storage.snapshot_file import Snapshot, decode_snapshot
from driftq.system.disk import read_file

_ID = re.compile(rb"[0-9a-f]{32}\n")
_UNFINISHED = re.compile(r"snapshot-\d{16}\.bin\.tmp|\.driftq\.id\.new")
_OURS = re.compile(
    r"\.driftq\.(?:lock|id|reserve)|damaged-.*"
    r"|meta/snapshot-\d{16}\.bin|stage/part-\d{16}\.bin|wal/(?:shard-\d{2,}/)?(?:wal-\d{16}\.log|\.driftq\.reserve)"
    r"|(?:lost/)?topics/[0-9A-F]{8,}/seg-\d{16}\.(?:data|idx|tags|parquet|del)|lost/accepted\.jsonl|topics/\.driftq\.id"
)
_DIRECTORIES = re.compile(r"meta|wal|stage|wal/shard-\d{2,}|lost|(?:lost/)?topics(?:/[0-9A-F]{8,})?")


class Verification:
    """One verification of one directory."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._disk = layout.disk
        self._progress: Callable[[int], None] = lambda _: None
        self._done = 0
        self.report = VerificationReport(layout.data, layout.cold, findings=[])
        self._topics: dict[int, TopicCheckpoint] = {}
        self._deleted: set[int] = set()
        self._marked = False
        self.total = self._count()
        """Number of bytes to read."""

    def run(self, progress: Callable[[int], None] = lambda _: None) -> VerificationReport:
        """Verify everything. `progress` is called with the number of bytes read so far."""
        self._progress = progress
        snapshot = self._checkpoints()
        if snapshot is not None:
            self._decode_topics(snapshot)
        self._log(snapshot)
        self._segments()
        self._parts()
        self._guarded(f"{self._layout.data}/.driftq.id", self._ids())
        return self.report

    def _tell(self, size: int) -> None:
        self._done += size
        self._progress(min(self._done, self.total))

    def _found(self, finding: Finding) -> None:
        self.report.findings.append(finding)

    def _guarded(self, path: str, findings: Iterator[Finding]) -> None:
        """Add the findings; an error of the disk becomes a finding too."""
        try:
            for finding in findings:
                self._found(finding)
        except OSError as error:
            self._found(Finding(path, Verdict.DAMAGE, f"it cannot be read: {error.strerror or error}"))

    # Names

    def _count(self) -> int:
        """Return the number of bytes to read. Unknown file names become findings."""
        roots = [self._layout.data] if self._layout.cold is None else [self._layout.data, self._layout.cold]
        return sum(self._count_below(root, "") for root in roots)

    def _count_below(self, root: str, inside: str) -> int:
        total = 0
        for name in self._disk.names(posixpath.join(root, inside)):
            relative = posixpath.join(inside, name)
            path = posixpath.join(root, relative)
            if _DIRECTORIES.fullmatch(relative):
                total += self._count_below(root, relative)
            elif not _OURS.fullmatch(relative):
                unfinished = _UNFINISHED.fullmatch(name) is not None
                what = "it was never finished" if unfinished else "not the name of a file of a server"
                self._found(Finding(path, Verdict.STRAY, what, crash=unfinished))
            elif not name.startswith((".", "damaged-")):
                self.report.files += 1
                total += self._size(path)
        self.report.bytes += total if not inside else 0
        return total

    def _size(self, path: str) -> int:
        try:
            file = self._disk.open(path)
        except OSError:
            return 0
        try:
            return file.size()
        finally:
            file.close()

    # Checkpoints

    def _checkpoints(self) -> Snapshot | None:
        """Check every checkpoint and return the newest valid one."""
        newest: Snapshot | None = None
        for number in reversed(self._layout.snapshots()):
            path = self._layout.snapshot_path(number)
            try:
                content = read_file(self._disk, path)
            except OSError as error:
                self._found(Finding(path, Verdict.DAMAGE, f"it cannot be read: {error.strerror}"))
                continue
            self._tell(len(content))
            try:
                snapshot = decode_snapshot(content)
            except NewerFormatError as error:
                self._found(Finding(path, Verdict.DAMAGE, error.message))
                continue
            if snapshot is None:
                self._found(Finding(path, Verdict.DAMAGE, "the checkpoint is not valid"))
            elif newest is None:
                newest = snapshot
                self.report.checkpoint = number
        return newest

    def _decode_topics(self, snapshot: Snapshot) -> None:
        path = self._layout.snapshot_path(self.report.checkpoint)
        for content in snapshot.topics:
            try:
                state = decode_topic(content)
            except DecodeError as error:
                self._found(Finding(path, Verdict.DAMAGE, f"a topic in it cannot be decoded: {error}"))
                continue
            self._topics[state.topic_id] = state
            for frame in state.tail:
                header = read_frame(frame, 0, len(frame))
                block = Block.read(frame, header) if isinstance(header, Frame) else None
                if not isinstance(block, Block):
                    what = f"a block of topic {state.name!r} in it is not valid"
                    self._found(Finding(path, Verdict.DAMAGE, what, topic_id=state.topic_id))
                else:
                    self.report.records += block.count
        self.report.topics = len(self._topics)

    # The WAL

    def _log(self, snapshot: Snapshot | None) -> None:
        walk = WalWalk(self._layout, {} if snapshot is None else snapshot.positions)
        for finding in walk.missing(based=snapshot is not None):
            self._found(finding)
        for number, name in walk.files:
            path = self._layout.wal_path(name, number)
            self._guarded(path, self._log_file(walk, number, name))
        if snapshot is None and not self.report.checkpoint:
            self._without_checkpoint(bool(walk.files))

    def _log_file(self, walk: WalWalk, number: int, name: str) -> Iterator[Finding]:
        scan = walk.scan(number, name)
        for met in scan.met:
            if isinstance(met, Finding):
                yield met
                continue
            self.report.frames += 1
            if met.kind == Kind.CHECKPOINT_MARK:
                self._marked = True
            elif met.kind == Kind.TOPIC_DELETE:
                self._deleted.add(met.topic_id)
        self._tell(len(scan.content))

    def _without_checkpoint(self, any_log: bool) -> None:
        """Report a missing checkpoint if a mark in the log, or segments without a log, show that there was one."""
        if any(found.file.startswith(self._layout.meta_dir) for found in self.report.findings):
            return
        if self._marked:
            what = "the log shows that a checkpoint was started, but there is none"
            self._found(Finding(self._layout.meta_dir, Verdict.MISSING, what, crash=True))
        elif not any_log and self._layout.topic_ids(cold=False):
            what = "there are segments, but neither a checkpoint nor a log"
            self._found(Finding(self._layout.meta_dir, Verdict.MISSING, what))

    # Segments

    def _segments(self) -> None:
        layout = self._layout
        topics = {*layout.topic_ids(cold=False), *layout.topic_ids(cold=True), *self._topics}
        for topic_id in sorted(topics):
            state = self._topics.get(topic_id)
            named = {} if state is None else {segment.first_seq: segment for segment in state.segments}
            hot = layout.segment_files(topic_id, cold=False)
            cold = layout.segment_files(topic_id, cold=True)
            for first_seq in sorted({*named, *hot, *cold}):
                self._segment(topic_id, first_seq, named.get(first_seq), hot.get(first_seq), cold.get(first_seq))

    def _segment(
        self, topic_id: int, first_seq: int, state: SegmentState | None, hot: set[str] | None, cold: set[str] | None
    ) -> None:
        path = self._layout.segment_path(topic_id, first_seq, "data")
        if topic_id in self._deleted:
            state = None
        if hot is None and cold is None:
            if state is not None:
                self._gone(topic_id, state)
            return
        checks: list[HotCheck | ColdCheck] = []
        if hot is not None and (cold is None or "data" in hot):
            earliest = 0 if state is None else self._topics[topic_id].earliest
            checks.append(HotCheck(self._layout, topic_id, first_seq, hot, state, earliest, self._tell))
        if cold is not None:
            # A segment may have moved since the checkpoint: then its hot copy is gone, and the cold one is compared.
            named = state is not None and (state.cold or hot is None or "data" not in hot)
            checks.append(ColdCheck(self._layout, topic_id, first_seq, cold, named=named, tell=self._tell))
        for check in checks:
            self._guarded(check.path, check.findings())
            self.report.blocks += check.blocks
            self.report.records += check.records
        counted = next(
            (c for c in checks if isinstance(c, ColdCheck) == (state is not None and state.cold)), checks[-1]
        )
        if state is not None and counted.rows:
            self._check_gone(path, topic_id, state, counted.rows)

    def _gone(self, topic_id: int, state: SegmentState) -> None:
        suffix = "parquet" if state.cold and self._layout.cold is not None else "data"
        what = "the checkpoint refers to it, but the file does not exist"
        if state.cold and self._layout.cold is None:
            what = "it is in the cold tier, and no cold directory was given; set --cold-dir"
        path = self._layout.segment_path(topic_id, state.first_seq, suffix)
        self._found(Finding(path, Verdict.MISSING, what, None, topic_id, state.first_seq, state.end_seq - 1))

    def _check_gone(self, path: str, topic_id: int, state: SegmentState, rows: list[FlaggedRows]) -> None:
        earliest = self._topics[topic_id].earliest
        for first, last, found, said in gone_rows(rows, state, earliest):
            what = f"{found} records are deleted by their delete flags, but {said} by the checkpoint"
            self._found(Finding(path, Verdict.DAMAGE, what, None, topic_id, first, last))

    # The rest

    def _parts(self) -> None:
        for number in self._layout.stage_files():
            path = self._layout.stage_path(number)
            self._guarded(path, self._part(path))

    def _part(self, path: str) -> Iterator[Finding]:
        self._tell(self._size(path))
        if read_head(self._disk, path) is None:
            yield Finding(path, Verdict.DAMAGE, "the staged part is incomplete", crash=True)
            return
        rows = read_rows(self._disk, path)
        content = read_file(self._disk, path)
        if rows is None:
            yield Finding(path, Verdict.DAMAGE, "the records of the staged part are not valid")
        elif content[len(content) - rows.count :].strip(b"\0"):
            yield Finding(
                path, Verdict.DAMAGE, "a delete flag is set in a staged part", offset=len(content) - rows.count
            )

    def _ids(self) -> Iterator[Finding]:
        """Check the id of the data directory, and that a cold directory with an id has the same one."""
        path = f"{self._layout.data}/.driftq.id"
        if not self._disk.exists(path):
            yield Finding(path, Verdict.MISSING, "every server writes this file at its first start", crash=True)
            return
        own = read_file(self._disk, path)
        if not _ID.fullmatch(own):
            yield Finding(path, Verdict.DAMAGE, "it is not the id of a server")
        cold = None if self._layout.cold is None else f"{self._layout.cold}/.driftq.id"
        if cold is not None and self._disk.exists(cold) and read_file(self._disk, cold) != own:
            yield Finding(cold, Verdict.DAMAGE, "it differs from the id in the data directory")


def verify(layout: Layout) -> VerificationReport:
    """Verify a directory. The caller holds the lock."""
    return Verification(layout).run()
