"""From a data directory to the state it promises (http-v0 §19.7).

    newest valid checkpoint → named segments and their flags → orphans away → every WAL file past its checkpoint, by
    number → holes for what is missing → `disk` heads raised to their reservation → what was replayed made durable

Idempotent and restartable: nothing it writes is needed by its next run, and a run that is cut short anywhere is
followed by one that finds the same. What a frame does is `engine.replay`'s business.
"""

from collections.abc import Iterator

from msgspec import msgpack

from driftq.engine.capture import Restorer, decode_topic
from driftq.engine.catalog import Catalog
from driftq.engine.checkpoint import ENGINE_SECTION, EngineState
from driftq.engine.filing import Filing
from driftq.engine.replay import Replay
from driftq.engine.tags import TagIndexes
from driftq.engine.time import EngineTime
from driftq.engine.topic import Topic
from driftq.engine.upstream import Deriver
from driftq.errors import NewerFormatError, UnrecoverableError
from driftq.model.tombstone import Reason
from driftq.model.topic import Durability
from driftq.seam.disk import Site, write_fully
from driftq.storage.bodies import FileHead, decode_file_head
from driftq.storage.cold_store import ColdStore
from driftq.storage.columns import WRITER
from driftq.storage.frame import Frame, Kind, control_body, read_frame
from driftq.storage.layout import Layout
from driftq.storage.segment_store import SegmentStore
from driftq.storage.snapshot import Snapshot, newest_snapshot
from driftq.storage.wal_reader import Damage, WalScan

_STEP_FRAMES = 1024
"""A step is so many frames, some milliseconds of work."""
_APPEND = int(Kind.APPEND)


class Recovery:
    """One start."""

    def __init__(
        self,
        layout: Layout,
        catalog: Catalog,
        store: SegmentStore,
        cold: ColdStore | None,
        filing: Filing,
        indexes: TagIndexes,
        time: EngineTime,
        deriver: Deriver | None = None,
    ) -> None:
        self._layout = layout
        self._disk = layout.disk
        self._catalog = catalog
        self._filing = filing
        self._time = time
        self._restorer = Restorer(store, cold)
        self._frames = Replay(catalog, filing, indexes, time, deriver)
        self.report = self._frames.report

    def steps(self) -> Iterator[float]:
        """All of it, in order, a little at a time: after every step, how much of it is done, from 0 to 1."""
        self._make_entries_durable()
        number, snapshot, refused = newest_snapshot(self._layout)
        self.report.snapshot, self.report.refused_snapshots = number, refused
        if snapshot is None:
            self._check_from_the_start(refused)
        else:
            self._check_positions(snapshot, refused)
            yield from self._restore(snapshot)
        self._remove_orphans()
        yield from self._replay(snapshot.positions if snapshot is not None else {})
        self._finish()
        yield 1.0

    def _make_entries_durable(self) -> None:
        """The process before may have died between a rename, or a new WAL file, and the sync of its directory.

        A checkpoint that could still vanish must not be built on, for what it no longer names is removed; a WAL file
        that could still vanish would leave a gap in the numbers.
        """
        self._disk.sync_dir(self._layout.meta_dir, Site.SNAPSHOT_DIR)
        for name in self._layout.wal_dirs():
            self._disk.sync_dir(self._layout.wal_dir(name), Site.WAL_DIR)

    # The checkpoint

    def _check_from_the_start(self, refused: list[str]) -> None:
        """Without a checkpoint the WAL must begin at its first file and have no gap."""
        numbers = {number for number, _ in self._layout.wal_files()}
        complete = numbers == set(range(1, len(numbers) + 1))
        if not complete or (not numbers and (refused or self._has_segments())):
            named = f"checkpoint {refused[0]} cannot be read" if refused else "there is no checkpoint"
            raise UnrecoverableError(
                f"{named}, and the WAL below {self._layout.wal_dir('')} does not begin at its first file;"
                " restore the checkpoint or the WAL from a backup"
            )

    def _check_positions(self, snapshot: Snapshot, refused: list[str]) -> None:
        """The WAL files a checkpoint ends in stay until a newer one is durable: without them that one is needed."""
        for name, (number, offset) in snapshot.positions.items():
            path = self._layout.wal_path(name, number)
            if offset and not self._disk.exists(path):
                newer = f"checkpoint {refused[0]} cannot be read, and of the one before it" if refused else "of the WAL"
                raise UnrecoverableError(f"{newer} {path} is missing; restore it from a backup")

    def _has_segments(self) -> bool:
        return any(self._layout.segment_files(topic_id, cold=False) for topic_id in self._layout.topic_ids(cold=False))

    def _restore(self, snapshot: Snapshot) -> Iterator[float]:
        sections = dict(snapshot.sections)
        state = msgpack.decode(sections.pop(ENGINE_SECTION), type=EngineState)
        self._frames.time_seen = state.time_seen
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
            raise NewerFormatError(
                f"the checkpoint has sections this version does not know: {', '.join(sorted(sections))};"
                " start the version that wrote it"
            )

    def _remove_orphans(self) -> None:
        """Files that no checkpoint names: the WAL has their records, and replay writes them anew."""
        for cold in (False, True):
            for topic_id in self._layout.topic_ids(cold=cold):
                topic = self._catalog.by_id.get(topic_id)
                named = {} if topic is None else {segment.first_seq: segment for segment in topic.segments}
                for first_seq, suffixes in self._layout.segment_files(topic_id, cold=cold).items():
                    if (topic_id, first_seq) in self._restorer.unreadable:
                        continue
                    segment = named.get(first_seq)
                    if segment is None or segment.cold != cold:
                        for suffix in sorted(suffixes):
                            self._disk.unlink(self._layout.segment_path(topic_id, first_seq, suffix))

    # The WAL

    def _replay(self, positions: dict[str, tuple[int, int]]) -> Iterator[float]:
        files = [
            (number, name) for number, name in self._layout.wal_files() if number >= positions.get(name, (0, 0))[0]
        ]
        heads = {key: self._head_of(*key) for key in files}
        self._frames.begin(len({name for _, name in files}))
        followed_to = {
            (head.previous, name): head.previous_end for (_, name), head in heads.items() if head is not None
        }
        for done, (number, name) in enumerate(files):
            at, offset = positions.get(name, (0, 0))
            start = offset if number == at else 0
            self._check_previous(heads, number, name, at)
            steps = self._replay_file(number, name, start, heads[number, name], followed_to.get((number, name), 0))
            for share in steps:
                yield (done + share) / len(files)

    def _check_previous(self, heads: dict[tuple[int, str], FileHead | None], number: int, name: str, at: int) -> None:
        """A file that is missing before this one is damage, as many bytes as it had."""
        head = heads[number, name]
        if head is not None and at <= head.previous and head.previous and (head.previous, name) not in heads:
            self._frames.damaged(Damage(0, head.previous_end, None), head)

    def _head_of(self, number: int, name: str) -> FileHead | None:
        file = self._disk.open(self._layout.wal_path(name, number))
        try:
            content = file.pread(256, 0)
        finally:
            file.close()
        header = read_frame(content, 0, len(content))
        if not isinstance(header, Frame) or header.kind != Kind.FILE_HEAD:
            return None
        return decode_file_head(control_body(content, header))

    def _replay_file(
        self, number: int, name: str, start: int, head: FileHead | None, synced_end: int
    ) -> Iterator[float]:
        path = self._layout.wal_path(name, number)
        buffer = self._read(path, synced_end)
        scan = WalScan(buffer, number, start, synced_end=synced_end)
        self.report.files += 1
        frames, step = 0, _STEP_FRAMES
        for found in scan:
            if isinstance(found, Damage):
                self._frames.damaged(found, head)
                continue
            frames += 1
            if found.kind == _APPEND:
                if found.bits & WRITER:
                    self._frames.held.add(buffer, found)
                else:
                    self._frames.append(buffer, found)
                    if found.count == 1:
                        frames += self._frames.append_run(scan, found)
            else:
                self._frames.apply(buffer, found)
            if frames >= step:
                step = frames + _STEP_FRAMES
                yield found.end / len(buffer)
        self._frames.held.drop()
        self.report.frames += frames
        for topic in self._catalog.by_id.values():
            if topic.segments and topic.segments[-1].pending:
                self._filing.write_now(topic)
        proven = max(scan.proven, synced_end)
        if scan.torn or scan.end > proven:
            self._make_durable(path, scan, buffer[max(proven, start) : scan.end])

    def _read(self, path: str, synced_end: int) -> bytes:
        """The frames of a file: all of it, or up to the end that a later file of the same run knows of."""
        file = self._disk.open(path)
        try:
            return file.pread(synced_end or file.size(), 0)
        finally:
            file.close()

    def _make_durable(self, path: str, scan: WalScan, unproven: bytes) -> None:
        """What was replayed is shown from now on, so it must not get lost; what was torn off must not come back.

        Its end is written again. If a sync of it failed in the process before, these pages count as clean, and another
        sync would leave them where they are, in memory.
        """
        file = self._disk.open(path)
        try:
            if scan.torn:
                self.report.torn += 1
                file.truncate(scan.end)
            write_fully(file, [unproven], scan.end - len(unproven))
            file.sync(Site.WAL_REPLAYED)
        finally:
            file.close()

    # The end

    def _finish(self) -> None:
        self._frames.apply_deferred()
        for topic, first, last in self._restorer.lost:
            topic.holes.add(max(first, topic.evict_floor), last, Reason.CORRUPTION)
        for topic in [topic for topic in self._catalog.by_id.values() if topic.id in self._frames.suspects]:
            if topic.durability in (Durability.DISK, Durability.FSYNC):
                topic.skip_to(topic.head + self._frames.suspect_records, Reason.CORRUPTION)
        self._frames.derive_rest()
        for topic in sorted(self._catalog.by_id.values(), key=lambda topic: topic.id):
            if topic.durability is Durability.DISK:
                topic.skip_to(topic.reserved, Reason.CRASH)
            if topic.config.ttl_ms:
                self._frames.time_seen = max(self._frames.time_seen, topic.last_ts)
            topic.next_seq = topic.head + 1
            topic.next_op = topic.op + 1
            topic.reserve_asked = topic.reserved
            topic.synced_seq = topic.head
            # What is here came from the log: only a class that goes on without one will mix it.
            topic.mixed_to = topic.head if topic.is_resident() else 0
            self._claim_name(topic)
        self._time.not_before(self._frames.time_seen if self._frames.any_ttl() else 0)
        now = self._time.now()
        for topic in self._catalog.by_id.values():
            topic.expire(now)
            # The log does it behind every frame. Only rows whose flags could not be believed may be too many.
            topic.evict()

    def _claim_name(self, topic: Topic) -> None:
        """Topics come by id: a later one of the same name exists only because the earlier was deleted."""
        earlier = self._catalog.by_name.get(topic.name)
        if earlier is not None:
            self._catalog.forget(earlier)
        self._catalog.hold_name(topic)
        topic.visible = True
