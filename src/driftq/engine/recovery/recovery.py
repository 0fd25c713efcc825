"""Restores the state from a data directory (http-v0 §19.7).

    newest valid checkpoint → referenced segments and their flags → orphans removed → every WAL file after the
    checkpoint, by number → holes for what is missing → `disk` heads raised to their reservation → replayed frames made
    durable → ready → records of class `memory` that were skipped (`engine/recovery/deferred_load`)

A full disk does not stop it: blocks that it would write into segments stay in memory, and it releases the unused space
after the frames of WAL files.

Idempotent and restartable: the next run needs nothing that this one writes, and after a run that was interrupted
anywhere, the next one finds the same state. `engine/recovery/replay` applies the frames.
"""

import posixpath
from collections.abc import Iterator

from msgspec import DecodeError, msgpack

from driftq.engine.engine_time import EngineTime
from driftq.engine.files.checkpoint import ENGINE_SECTION, EngineState
from driftq.engine.files.lost_segments import is_given_up
from driftq.engine.files.missing_segments import MissingSegment, refusal
from driftq.engine.files.segment_files import SegmentFiles
from driftq.engine.files.topic_checkpoint import Restorer, decode_topic
from driftq.engine.read.tag_lookup import TagIndexes
from driftq.engine.recovery.deferred_load import Late
from driftq.engine.recovery.derived_copies import Deriver
from driftq.engine.recovery.frame_walk import Walk
from driftq.engine.recovery.replay import Replay
from driftq.engine.state.catalog import Catalog
from driftq.engine.state.durable_feature import NamesTopics
from driftq.engine.state.segment import Segment
from driftq.engine.state.topic import Topic
from driftq.errors import UnrecoverableError
from driftq.model.tombstone import Reason
from driftq.model.topic_config import Durability
from driftq.storage.format_version import newer
from driftq.storage.layout import Layout
from driftq.storage.no_space import is_no_space
from driftq.storage.segments.cold_store import ColdStore
from driftq.storage.segments.hot_store import SegmentStore
from driftq.storage.server_id import carries_mark, check_cold_root
from driftq.storage.snapshot_file import Snapshot, newest_snapshot
from driftq.storage.wal.wal_head import HEAD_BYTES, WalHead, head_of, is_version_1
from driftq.storage.wal.wal_reader import Damage, is_zero, scan_of
from driftq.storage.wal.wal_replayed import LogBytes, cut_file, make_durable
from driftq.system.disk import Site
from driftq.system.machine import UNKNOWN_BOOT


class Recovery:
    """Runs the recovery of one start."""

    def __init__(
        self,
        layout: Layout,
        catalog: Catalog,
        store: SegmentStore,
        cold: ColdStore | None,
        segment_files: SegmentFiles,
        indexes: TagIndexes,
        time: EngineTime,
        deriver: Deriver | None = None,
        *,
        missing_is_lost: bool = False,
        boot_id: bytes = UNKNOWN_BOOT,
    ) -> None:
        self._layout = layout
        self._store = store
        self._boot_id = boot_id
        self._rebooted = True
        """Whether the machine may have stopped since the previous run: then unsynced data of that run may be lost."""
        self.unsure: list[tuple[Topic, Segment]] = []
        """Sealed hot segments whose `.idx` or `.tags` may be missing or torn."""
        self._disk = layout.disk
        self._catalog = catalog
        self._segment_files = segment_files
        self._time = time
        self._restorer = Restorer(store, cold, missing_is_lost=missing_is_lost)
        self._frames = Replay(catalog, segment_files, indexes, time, deriver)
        self.late = Late(layout.disk, catalog, self._frames, deriver)
        """Records of class `memory` that are loaded when the server is ready."""
        self._walk = Walk(self._frames, self.late, time, deriver)
        self.report = self._frames.report
        self.log_from = 0
        """The highest file number at which the checkpoint lets replay begin: files of this run are not below it."""
        self._full = False

    def steps(self) -> Iterator[float]:
        """Run all of it in order, step by step; yields after every step how much is done, from 0 to 1."""
        check_cold_root(self._layout)
        self._make_entries_durable()
        number, snapshot, refused = newest_snapshot(self._layout)
        self.report.snapshot, self.report.refused_snapshots = number, refused
        if snapshot is None:
            self._check_from_the_start(refused)
        else:
            self._check_positions(snapshot, refused)
            self.log_from = max((number for number, _ in snapshot.positions.values()), default=0)
            self._remove_superseded(number, snapshot)
            yield from self._restore(snapshot)
        self._segment_files.lost.look()
        self._rebooted = self._was_rebooted()
        self._remove_orphans()
        yield from self._replay(snapshot.positions if snapshot is not None else {})
        self._finish()
        yield 1.0

    def _was_rebooted(self) -> bool:
        heads = [head_of(self._disk, self._layout.wal_path(name, number)) for number, name in self._layout.wal_files()]
        boots = {head.body.boot_id for head in heads if head is not None}
        return self._boot_id == UNKNOWN_BOOT or boots != {self._boot_id}

    def _make_entries_durable(self) -> None:
        """Sync directories, in case the previous process died between a rename or a new WAL file and the sync.

        A checkpoint that could still vanish must not be used, because files that it no longer references are removed; a
        WAL file that could still vanish would leave a gap in the numbers.
        """
        self._disk.sync_dir(self._layout.meta_dir, Site.SNAPSHOT_DIR)
        for name in self._layout.wal_dirs():
            self._disk.sync_dir(self._layout.wal_dir(name), Site.WAL_DIR)

    # The checkpoint

    def _check_from_the_start(self, refused: list[str]) -> None:
        """Raise UnrecoverableError unless the WAL begins at its first file and has no gap; there is no checkpoint."""
        numbers = {number for number, _ in self._layout.wal_files()}
        complete = numbers == set(range(1, len(numbers) + 1))
        if not complete or (not numbers and (refused or self._has_segments())):
            named = f"checkpoint {refused[0]} cannot be read" if refused else "there is no checkpoint"
            raise UnrecoverableError(
                f"{named}, and files of the WAL below {self._layout.wal_dir('')} are missing;"
                " restore the checkpoint or the WAL from a backup"
            )

    def _check_positions(self, snapshot: Snapshot, refused: list[str]) -> None:
        """Raise UnrecoverableError if a WAL file is missing in which the checkpoint ends.

        Such a file stays until a newer checkpoint is durable; so if it is missing, that newer checkpoint is needed.
        """
        for name, (number, offset) in snapshot.positions.items():
            path = self._layout.wal_path(name, number)
            if offset and not self._disk.exists(path):
                unread = f"checkpoint {refused[0]} cannot be read, and " if refused else ""
                raise UnrecoverableError(f"{unread}WAL file {path} is missing; restore it from a backup")

    def _remove_superseded(self, number: int, snapshot: Snapshot) -> None:
        """Remove files that this checkpoint replaced and the previous process left: the disk may be full."""
        for name in self._disk.names(self._layout.meta_dir):
            if name.startswith("snapshot-") and name < posixpath.basename(self._layout.snapshot_path(number)):
                self._disk.unlink(f"{self._layout.meta_dir}/{name}")
        for file, name in self._layout.wal_files():
            if file < snapshot.positions.get(name, (0, 0))[0]:
                self._disk.unlink(self._layout.wal_path(name, file))

    def _has_segments(self) -> bool:
        return any(self._layout.segment_files(topic_id, cold=False) for topic_id in self._layout.topic_ids(cold=False))

    def _restore(self, snapshot: Snapshot) -> Iterator[float]:
        """Load the state of a checkpoint. Its checksum is right, so what cannot be decoded has a newer format."""
        try:
            yield from self._restore_all(snapshot)
        except DecodeError as error:
            raise newer(f"checkpoint {self.report.snapshot} ({error})", snapshot.written_by) from error

    def _restore_all(self, snapshot: Snapshot) -> Iterator[float]:
        sections = dict(snapshot.sections)
        state = msgpack.decode(sections.pop(ENGINE_SECTION), type=EngineState)
        self._time.found_note(state.time_seen)
        if state.clock is not None:
            self._time.restore(state.clock)
        for content in snapshot.topics:
            topic_state = decode_topic(content)
            topic = self._catalog.adopt(topic_state.topic_id, topic_state.name, topic_state.config)
            self._restorer.restore(topic_state, topic)
            yield 0.0
        self._catalog.next_id = max(self._catalog.next_id, state.next_topic_id)
        for feature in self._catalog.features:
            section = sections.pop(feature.name, None)
            if section is not None:
                feature.restore(section)
        if sections:
            unknown = ", ".join(sorted(sections))
            raise newer(f"checkpoint {self.report.snapshot} with the unknown sections {unknown}", snapshot.written_by)

    def _remove_orphans(self) -> None:
        """Remove files that no checkpoint references: the WAL has their records, and replay writes them again.

        Files of a given-up segment move to `lost/`, if the previous run had no time for it.
        """
        for cold in (False, True):
            if cold and self._cold_is_unmarked():
                continue
            for topic_id in self._layout.topic_ids(cold=cold):
                topic = self._catalog.by_id.get(topic_id)
                named = {} if topic is None else {segment.first_seq: segment for segment in topic.segments}
                for first_seq, suffixes in self._layout.segment_files(topic_id, cold=cold).items():
                    if (topic_id, first_seq) in self._restorer.unreadable:
                        continue
                    segment = named.get(first_seq)
                    if segment is None and topic is not None and is_given_up(topic, first_seq):
                        self._segment_files.lost.keep(topic_id, first_seq)
                    elif segment is None or segment.cold != cold:
                        for suffix in sorted(suffixes):
                            self._disk.unlink(self._layout.segment_path(topic_id, first_seq, suffix))
                    elif topic is not None and not cold:
                        self._tidy(topic, segment, suffixes)

    def _tidy(self, topic: Topic, segment: Segment, suffixes: set[str]) -> None:
        """Cut a hot segment to what the checkpoint references, and remember segments that may lack a file."""
        if not segment.sealed:
            end = sum(segment.index.place(segment.written_blocks - 1)) if segment.written_blocks else 0
            self._store.cut(topic.id, segment.first_seq, end)
        elif self._rebooted or not suffixes >= {"idx", "tags"}:
            self.unsure.append((topic, segment))

    def _cold_is_unmarked(self) -> bool:
        """Whether the cold directory has no mark yet: its files may belong to another server."""
        return self._layout.cold is not None and not carries_mark(self._layout)

    # The WAL

    def _replay(self, positions: dict[str, tuple[int, int]]) -> Iterator[float]:
        files = [
            (number, name) for number, name in self._layout.wal_files() if number >= positions.get(name, (0, 0))[0]
        ]
        heads = {key: head_of(self._disk, self._layout.wal_path(key[1], key[0])) for key in files}
        at_checkpoint = [heads.get((number, name)) for name, (number, offset) in positions.items() if offset]
        runs = {None if head is None else head.body.run for head in at_checkpoint}
        self._frames.begin(len({name for _, name in files}))
        self._frames.runs.begin(runs.pop() if len(runs) == 1 else None)
        followed_to = {
            (head.body.previous, name): head.body.previous_end for (_, name), head in heads.items() if head is not None
        }
        for done, (number, name) in enumerate(files):
            at, offset = positions.get(name, (0, 0))
            start = offset if number == at else 0
            self._check_previous(heads, number, name, at)
            synced_end = followed_to.get((number, name), 0)
            head = heads[number, name]
            if head is None and not is_version_1(number, heads):
                self._pass_over(number, name, start, synced_end)
                continue
            self._frames.runs.enter(None if head is None else head.body, self._catalog.by_id.values())
            for share in self._replay_file(number, name, start, head, synced_end):
                yield (done + share) / len(files)

    def _check_previous(self, heads: dict[tuple[int, str], WalHead | None], number: int, name: str, at: int) -> None:
        """Count a missing file before this one as damage, with the number of bytes that it had."""
        head = heads[number, name]
        if head is None:
            return
        body = head.body
        if at <= body.previous and body.previous and (body.previous, name) not in heads:
            self._frames.damaged(Damage(head.frames_at, body.previous_end, None), body)

    def _pass_over(self, number: int, name: str, start: int, synced_end: int) -> None:
        """Count a file whose head is lost as damage, if anything was ever written to it."""
        self.report.files += 1
        buffer = LogBytes(self._disk, self._layout.wal_path(name, number), synced_end, None).content
        if synced_end or not is_zero(buffer, max(start, HEAD_BYTES)):
            end = synced_end or len(bytes(buffer).rstrip(b"\0"))
            self._frames.runs.enter(None, self._catalog.by_id.values())
            self._frames.damaged(Damage(max(start, HEAD_BYTES), end, None), None)
        else:
            cut_file(self._disk, self._layout.wal_path(name, number), HEAD_BYTES)

    def _replay_file(
        self, number: int, name: str, start: int, head: WalHead | None, synced_end: int
    ) -> Iterator[float]:
        path = self._layout.wal_path(name, number)
        # Spans belong to `memory` topics. Without one, spans are only searched at the end of the file, because the file
        # itself may create such topics.
        has_late = any(topic.durability is Durability.MEMORY for topic in self._catalog.by_id.values())
        log = LogBytes(self._disk, path, synced_end, head, search_all=has_late)
        buffer = log.content
        body = None if head is None else head.body
        self._frames.written_by = "" if body is None else body.written_by
        scan = scan_of(buffer, number, head, start, synced_end=synced_end)
        scan.spans = log.spans
        start = scan.end
        self.report.files += 1
        yield from self._walk.over(scan, log, path, body)
        self._write_blocks()
        proven = max(scan.proven, synced_end)
        if scan.torn or scan.end > proven:
            self.report.torn += scan.torn
            make_durable(self._disk, path, scan.end, buffer[max(proven, start) : scan.end])
        else:
            cut_file(self._disk, path, scan.end)

    def _write_blocks(self) -> None:
        """Write closed blocks, so that memory does not grow with the log. On a full disk they stay in memory."""
        try:
            for topic in self._catalog.by_id.values():
                if not self._full and topic.segments and topic.segments[-1].pending:
                    self._segment_files.write_now(topic)
        except OSError as error:
            if not is_no_space(error):
                raise
            self._full = True

    # The end

    def _needs(self, segment: MissingSegment) -> bool:
        """Whether a missing segment still has records after the rest of the log was applied."""
        topic = segment.topic
        return self._catalog.by_id.get(topic.id) is topic and topic.evict_floor <= segment.last_seq

    def _finish(self) -> None:
        if self._frames.deferred.topics:
            self._walk.load_late()
        self._frames.apply_deferred()
        missing = [one for one in self._restorer.missing if self._needs(one)]
        if missing:
            raise refusal(missing, self._layout)
        for topic, given_up, first, last in self._restorer.lost:
            topic.holes.add(max(first, topic.evict_floor), last, Reason.CORRUPTION)
            # Its files move to `lost/` after the checkpoint that has the hole; until then a checkpoint references them.
            segment = Segment(given_up)
            segment.drop(given_up=True)
            self._segment_files.trash.append((topic, segment))
        for topic in [topic for topic in self._catalog.by_id.values() if topic.id in self._frames.suspects]:
            if topic.durability in (Durability.DISK, Durability.FSYNC):
                topic.skip_to(topic.head + self._frames.suspect_records, Reason.CORRUPTION, at_most=True)
        self._resume_time()
        self._frames.derive_rest()
        self._claim_names()
        for topic in self._catalog.by_id.values():
            if not topic.late:
                self.open(topic)

    def open(self, topic: Topic) -> None:
        """Open a topic for writes, after all its frames are applied."""
        topic.late = False
        topic.recovered = True
        flight = topic.in_flight
        flight.next_seq, flight.next_op = topic.head + 1, topic.op + 1
        flight.reserve_asked, flight.synced_seq = topic.reserved, topic.head
        # All records here came from the log; they get mixed only if the topic is `ephemeral`.
        topic.mixed_to = topic.head if topic.is_resident() else 0
        now = self._time.now()
        topic.expire(now)
        topic.keys.expire(topic.kept_from(now, topic.config.idempotency_window_ms))
        # The log evicts after every frame. Only rows whose flags were not trusted may exceed the caps.
        topic.evict()

    def _resume_time(self) -> None:
        """Let time continue where the log ends. Moments logged in advance matter only if something expires."""
        topics = self._catalog.by_id.values()
        for topic in topics:
            self._time.found_stamp(topic.last_ts)
        self._time.resume(expiring=any(topic.config.ttl_ms for topic in topics))

    def _claim_names(self) -> None:
        """Make every topic visible under its name, which a feature may decide."""
        for feature in self._catalog.features:
            if isinstance(feature, NamesTopics):
                feature.name_topics(self._catalog.by_id)
        for topic in sorted(self._catalog.by_id.values(), key=lambda topic: topic.id):
            self._frames.runs.settle(topic)
            self._claim_name(topic)

    def _claim_name(self, topic: Topic) -> None:
        """Give a topic its name. Topics come by id: a later one of the same name means that the earlier was deleted."""
        earlier = self._catalog.by_name.get(topic.name)
        if earlier is not None:
            self._catalog.forget(earlier)
        self._catalog.hold_name(topic)
        topic.visible = True
