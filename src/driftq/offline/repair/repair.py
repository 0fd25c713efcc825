"""Repairs a damaged data directory without losing anything that can be read.

    verified → originals kept → made fit to start → started and stopped → rebuilt → started and stopped → verified

- made fit to start: if no checkpoint is valid, a new one is made from the remains of the old ones. Log that continues
  after damage gets proof that it was synced. Missing log files get stand-ins, so that their loss is reported. Damaged
  delete flags are repaired.
- started and stopped: a server recovers as after any crash. What it cannot recover becomes holes.
- rebuilt: the holes are filled with everything that can be read anywhere (`offline/repair/checkpoint_rebuild`).

Invariants
- Before a file is changed or removed, a durable copy is in `damaged-<seconds>`. Nothing is removed from there.
- A record that can be read, and was neither deleted nor passed by retention, is there afterwards.
- A record that is not there afterwards is in a hole with reason `corruption`, which is reported to every reader.
- After a crash the repair can be run again. It starts with the directory as it is then, judges losses by the originals
  in the first folder, and ends with the same result.
"""

from collections.abc import Callable

from msgspec import DecodeError, Struct, ValidationError, msgpack, structs

from driftq import __version__
from driftq.engine.files.checkpoint import ENGINE_SECTION, EngineState
from driftq.engine.files.topic_checkpoint import TopicCheckpoint, decode_topic
from driftq.engine.state.holes import HoleList
from driftq.errors import UnrecoverableError
from driftq.model.names import is_topic_name
from driftq.model.tombstone import Hole, Reason
from driftq.model.topic_config import Durability, TopicConfig
from driftq.offline.directory_lock import held
from driftq.offline.findings import Finding, Verdict, VerificationReport
from driftq.offline.repair.checkpoint_frames import checkpoint_frames
from driftq.offline.repair.checkpoint_rebuild import Rebuild, RebuildResult
from driftq.offline.repair.checkpoint_remains import SEQ_MAX, Remains, read_remains
from driftq.offline.repair.flag_repair import Flags, overwrite
from driftq.offline.repair.interrupted_repair import Resume
from driftq.offline.repair.originals import Originals
from driftq.offline.repair.record_salvage import read_notes
from driftq.offline.verification import verify
from driftq.offline.wal_check import CUT, TORN, WalWalk, sound_frames, was_cut
from driftq.storage.blocks.frame import Frame, Kind
from driftq.storage.format_version import START_THAT
from driftq.storage.layout import Layout, make_directory
from driftq.storage.part_file import read_rows
from driftq.storage.snapshot_file import Snapshot, encode_snapshot, install_snapshot
from driftq.storage.wal.wal_head import HEAD_BYTES, SALT_BYTES, FileHead, WalHead, encode_head
from driftq.system.clock import Clock
from driftq.system.disk import Site, read_file, write_fully

Progress = Callable[[str], None]
UNKNOWN_RECORDS = 1 << 20
"""Upper bound for the number of records that a checkpoint copies of one topic."""


class LostRange(Struct, frozen=True):
    """Seqs of a topic that no file holds any more."""

    topic: str
    first_seq: int
    last_seq: int


class Repaired(Struct):
    """What a repair found, salvaged and lost."""

    data_dir: str
    originals: str
    """Folder with the original files."""
    findings: int
    salvaged: int
    """Number of records that a start alone would not have shown."""
    lost: list[LostRange]
    left: list[Finding]
    """Problems that remain; empty unless the disk itself fails."""


class Repair:
    """One repair. `restart` starts a server on the directory, with `missing_is_lost`, and stops it gracefully."""

    def __init__(
        self,
        layout: Layout,
        clock: Clock,
        restart: Callable[[], None],
        *,
        wal_file_bytes: int,
        tell: Progress = lambda _: None,
    ) -> None:
        self._layout = layout
        self._disk = layout.disk
        self._clock = clock
        self._restart = restart
        self._wal_file_bytes = wal_file_bytes
        self._tell = tell

    def run(self) -> Repaired:
        """Run the whole repair. Raise StartError."""
        with held(self._layout):
            self._tell("reading everything")
            before = verify(self._layout)
            self._refuse_what_is_not_damage(before)
            self._originals = Originals(self._layout, self._clock)
            self._resume = Resume(self._layout, self._originals)
            if self._resume.take_back():
                before = verify(self._layout)
            self._tell("copying the originals")
            self._keep_checkpoints()
            self._base = read_remains(self._layout)
            self._keep(before)
            self._originals.begin()
            self._remains = read_remains(self._originals.sources[0])
            self._notes = read_notes(self._originals.sources)
            self._make_fit(before)
        self._tell("starting and stopping a server")
        self._start()
        with held(self._layout):
            self._tell("searching for readable records")
            outcomes = self._rebuild(verify(self._layout))
        self._restart()
        with held(self._layout):
            self._tell("reading everything again")
            after = verify(self._layout)
            if not after.wrong():
                self._originals.finish()
        return Repaired(
            self._layout.data,
            self._originals.layout.data,
            len(before.wrong()),
            sum(outcome.salvaged for outcome in outcomes),
            [LostRange(outcome.topic, first, last) for outcome in outcomes for first, last in outcome.lost],
            after.wrong(),
        )

    def _refuse_what_is_not_damage(self, report: VerificationReport) -> None:
        for found in report.findings:
            if "cold tier, and no cold directory" in found.what:
                raise UnrecoverableError(
                    f"{found.file} is in the cold tier; pass the cold directory of this server with --cold-dir"
                )
            if START_THAT in found.what:
                raise UnrecoverableError(f"{found.file}: {found.what}")

    # The originals

    def _keep_checkpoints(self) -> None:
        make_directory(self._disk, self._originals.layout.data)
        for number in self._layout.snapshots():
            self._originals.keep(self._layout.snapshot_path(number))

    def _keep(self, report: VerificationReport) -> None:
        """Keep the whole log, and those segments that a start or the repair may change."""
        layout = self._layout
        for number, name in layout.wal_files():
            self._originals.keep(layout.wal_path(name, number))
        for found in report.findings:
            if found.file != layout.meta_dir and (found.verdict is not Verdict.STRAY or found.crash):
                self._originals.keep(found.file)
        settled = self._settled_segments()
        wrong = {found.file.rpartition(".")[0] for found in report.findings}
        for cold in (False, True):
            for topic_id in layout.topic_ids(cold=cold):
                for first_seq in layout.segment_files(topic_id, cold=cold):
                    stem = layout.segment_path(topic_id, first_seq, "parquet" if cold else "data").rpartition(".")[0]
                    if (topic_id, first_seq) not in settled or stem in wrong:
                        self._originals.keep_segment(topic_id, first_seq)

    def _settled_segments(self) -> set[tuple[int, int]]:
        """Return the sealed segments that a checkpoint names; a start does not change them."""
        return {
            (state.topic_id, segment.first_seq)
            for state in _states(self._base).values()
            for segment in state.segments
            if segment.cells is None
        }

    # Making it fit to start

    def _make_fit(self, report: VerificationReport) -> None:
        Flags(self._layout, _states(self._base)).mend(
            found for found in report.findings if not self._resume.is_mended(found)
        )
        self._drop_parts(report)
        if self._base is not None and self._base.whole:
            positions = dict(self._base.snapshot.positions)
        else:
            # Replay from the first existing file: earlier files were unnecessary, and replay applies each frame once.
            positions = {name: (number, 0) for number, name in reversed(self._layout.wal_files())}
        walk = WalWalk(self._layout, positions)
        gone = [found.file for found in walk.missing(based=True)]
        # Before the checkpoint that does not need the missing files: an interrupted repair must not hide a loss.
        self._stand_in(walk, gone)
        if self._base is None or not self._base.whole or gone:
            self._install(positions, gone)
        self._prove_ends(walk)

    def _drop_parts(self, report: VerificationReport) -> None:
        """Remove incomplete staged parts and unfinished files, and clear delete flags in complete staged parts."""
        for found in report.findings:
            if found.file.startswith(f"{self._layout.stage_dir}/"):
                rows = read_rows(self._disk, found.file)
                if rows is None:
                    self._disk.unlink(found.file)
                elif found.offset is not None:
                    overwrite(self._disk, found.file, bytes(rows.count), found.offset)
            elif found.verdict is Verdict.STRAY and found.crash and "never finished" in found.what:
                self._disk.unlink(found.file)

    def _install(self, positions: dict[str, tuple[int, int]], gone: list[str]) -> None:
        """Install a checkpoint that a server can start with."""
        for name, (number, _) in positions.items():
            if self._layout.wal_path(name, number) in gone:
                positions[name] = (number, 0)
        base = self._base
        states = _states(base)
        if base is None or not base.whole:
            states |= self._nameless(states)
        sections = {} if base is None else dict(base.snapshot.sections)
        sections[ENGINE_SECTION] = self._engine_section(sections.get(ENGINE_SECTION), states)
        self._put(Snapshot(positions, sections, [msgpack.encode(states[topic_id]) for topic_id in sorted(states)]))

    def _put(self, snapshot: Snapshot) -> None:
        number = 1 + max(self._layout.snapshots(), default=0)
        make_directory(self._disk, self._layout.meta_dir)
        install_snapshot(self._layout, number, encode_snapshot(snapshot))

    def _engine_section(self, old: bytes | None, states: dict[int, TopicCheckpoint]) -> bytes:
        seen = [*states, *self._notes.created, *self._notes.first_seqs, *self._layout.topic_ids(cold=False)]
        least = 1 + max(seen, default=0)
        try:
            state = EngineState(1, 0) if old is None else msgpack.decode(old, type=EngineState)
        except (DecodeError, ValidationError):
            state = EngineState(1, 0)
        return msgpack.encode(EngineState(max(least, state.next_topic_id), state.time_seen, state.clock))

    def _nameless(self, known: dict[int, TopicCheckpoint]) -> dict[int, TopicCheckpoint]:
        """Return new topics for records whose topic is lost with its name and settings."""
        notes, made = self._notes, {}
        held_by = {*notes.first_seqs, *self._layout.topic_ids(cold=False), *self._layout.topic_ids(cold=True)}
        for source in self._originals.sources:
            for number in source.snapshots():
                content = read_file(self._disk, source.snapshot_path(number))
                held_by |= {frame.topic_id for _, frame in checkpoint_frames(content) if frame.kind == Kind.APPEND}
        for topic_id in held_by - known.keys() - notes.created.keys() - notes.dropped:
            head = notes.first_seqs.get(topic_id, 1) - 1
            made[topic_id] = nameless(topic_id, head)
        return made

    def _stand_in(self, walk: WalWalk, gone: list[str]) -> None:
        """Write a stand-in for each missing log file that no other file's head names; it counts as all damaged."""
        told = {(head.body.previous, name) for (_, name), head in walk.heads.items() if head is not None}
        for path in gone:
            directory, _, file = path.rpartition("/")
            name = directory.removeprefix(self._layout.wal_dir("")).strip("/")
            number = int(file[4:20])
            if (number, name) not in told:
                # The proof first: without it, the stand-in would look like a log that was never written to.
                self._follow(name, number, None, HEAD_BYTES + self._wal_file_bytes)
                self._write_head(name, number, FileHead(number, 0, 1, 0, 0))

    def _prove_ends(self, walk: WalWalk) -> None:
        """Prove that a log was synced, where it continues after a place that looks torn."""
        told = {(head.body.previous, name) for (_, name), head in walk.heads.items() if head is not None}
        for number, name in walk.files:
            torn = self._torn_at(walk, number, name)
            if torn is None or (number, name) in told:
                continue
            path = self._layout.wal_path(name, number)
            content = read_file(self._disk, path)
            ends = [frame.end for frame in sound_frames(content, number, name, walk.heads) if frame.start > torn]
            if was_cut(content, torn) or self._originals.was_unreadable(path):
                ends.append(max(HEAD_BYTES + self._wal_file_bytes, len(content)))  # how much was there is unknown
            if ends:
                self._follow(name, number, walk.heads[number, name], max(ends))

    def _torn_at(self, walk: WalWalk, number: int, name: str) -> int | None:
        met = [met for met in walk.scan(number, name).met if not isinstance(met, Frame)]
        return next((found.offset for found in met if found.what in (TORN, CUT)), None)

    def _follow(self, name: str, number: int, head: WalHead | None, end: int) -> None:
        """Write a file that follows another one; its head proves that the other was synced up to `end`."""
        next_number = 1 + max([number, *(other for other, _ in self._layout.wal_files())])
        shard, shards = (head.body.shard, head.body.shards) if head is not None else (0, 1)
        self._write_head(name, next_number, FileHead(next_number, shard, shards, number, end))

    def _write_head(self, name: str, number: int, head: FileHead) -> None:
        # No frame will follow in this file, so the salt protects nothing.
        content = encode_head(structs.replace(head, salt=bytes(SALT_BYTES), written_by=__version__), number)
        make_directory(self._disk, self._layout.wal_dir(name))
        file = self._disk.create(self._layout.wal_path(name, number))
        try:
            write_fully(file, [content], 0)
            file.sync(Site.WAL_REPLAYED)
        finally:
            file.close()
        self._disk.sync_dir(self._layout.wal_dir(name), Site.WAL_DIR)

    def _start(self) -> None:
        """Start and stop a server. If a section of a damaged checkpoint prevents that, try again without sections."""
        try:
            self._restart()
        except (DecodeError, ValidationError, ValueError, TypeError, KeyError):
            if self._base is None or self._base.whole:
                raise
            with held(self._layout):
                bare = structs.replace(self._base.snapshot, sections={})
                self._base = Remains(bare, False)
                self._install({}, [])
            self._restart()

    # Rebuilding the checkpoint

    def _rebuild(self, report: VerificationReport) -> list[RebuildResult]:
        remains = read_remains(self._layout)
        if remains is None or not remains.whole:
            raise UnrecoverableError(f"{self._layout.data} has no checkpoint after a start; check its disk")
        for found in report.wrong():
            self._originals.keep(found.file)
        before = _states(self._remains)
        if self._remains is None or not self._remains.whole:
            before = {topic_id: structs.replace(state, holes=[]) for topic_id, state in before.items()}
        states = {state.topic_id: state for state in map(decode_topic, remains.snapshot.topics)}
        states |= self._forgotten(states)
        outcomes = []
        for topic_id, state in sorted(states.items()):
            if state.config.resolved_durability is Durability.EPHEMERAL:
                continue
            work = Rebuild(self._layout, self._originals, state, _broken(report, topic_id), before.get(topic_id))
            rebuilt = work.run(self._notes, beyond=self._beyond(topic_id, state))
            later = self._resume.is_later(state.created_ts)
            if topic_id not in before and self._blind and not later and not has_unknown_end(rebuilt):
                rebuilt = with_unknown_end(rebuilt)
                work.outcome.lost.append((rebuilt.head - UNKNOWN_RECORDS + 1, rebuilt.head))
            states[topic_id] = rebuilt
            outcomes.append(work.outcome)
        topics = [msgpack.encode(state) for _, state in sorted(states.items())]
        self._put(Snapshot(remains.snapshot.positions, remains.snapshot.sections, topics))
        return outcomes

    @property
    def _blind(self) -> bool:
        """Whether topic heads are uncertain: no valid checkpoint, and the log does not start at its first file."""
        whole = self._remains is not None and self._remains.whole
        return not whole and all(number != 1 for number, _ in self._originals.sources[0].wal_files())

    def _beyond(self, topic_id: int, state: TopicCheckpoint) -> int:
        """Return the last seq that may be salvaged. Above the head of a valid checkpoint, only the log has records."""
        logged = self._notes.last_seqs.get(topic_id, 0)
        whole = self._remains is not None and self._remains.whole
        return logged if whole else max(logged, state.head, SEQ_MAX)

    def _forgotten(self, states: dict[int, TopicCheckpoint]) -> dict[int, TopicCheckpoint]:
        """Return new topics for records in the log whose topic was created in a damaged part of it."""
        notes = self._notes
        least = 1
        if self._remains is not None and self._remains.whole:
            least = msgpack.decode(self._remains.snapshot.sections[ENGINE_SECTION], type=EngineState).next_topic_id
        lost = notes.first_seqs.keys() - states.keys() - notes.dropped - notes.created.keys()
        return {topic_id: nameless(topic_id, 0) for topic_id in lost if topic_id >= least}


def _states(remains: Remains | None) -> dict[int, TopicCheckpoint]:
    """Return the topics of a checkpoint by id."""
    if remains is None:
        return {}
    return {state.topic_id: state for state in map(decode_topic, remains.snapshot.topics)}


def nameless(topic_id: int, head: int) -> TopicCheckpoint:
    """Return the state of a topic of which only records are left, under a generated name."""
    name = f"recovered-{topic_id:08x}"
    assert is_topic_name(name)
    holes = [Hole(1, head, Reason.CORRUPTION)] if head else []
    config = TopicConfig(durability=Durability.FSYNC).resolved(name)
    return TopicCheckpoint(topic_id, name, config, 0, 0, head, 0, 1, 0, 0, 0, holes, [], [], [])


def has_unknown_end(state: TopicCheckpoint) -> bool:
    """Whether an interrupted repair already added the hole of `with_unknown_end`."""
    last = max(state.holes, key=lambda hole: hole.last, default=Hole(1, 0, Reason.CORRUPTION))
    return last.last == state.head and last.last - last.first + 1 >= UNKNOWN_RECORDS


def with_unknown_end(state: TopicCheckpoint) -> TopicCheckpoint:
    """Return the state with a hole of `UNKNOWN_RECORDS` seqs after the head.

    The lost checkpoint may have held newer records. The hole reports them, and their seqs are not assigned again.
    """
    holes = HoleList(list(state.holes))
    holes.add(state.head + 1, state.head + UNKNOWN_RECORDS, Reason.CORRUPTION, at_most=True)
    return structs.replace(state, head=state.head + UNKNOWN_RECORDS, holes=holes.all)


def _broken(report: VerificationReport, topic_id: int) -> set[int]:
    """Return the segments of a topic that have a finding, by first seq."""
    return {found.segment for found in report.wrong() if found.topic_id == topic_id and found.segment is not None}
