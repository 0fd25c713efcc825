"""Reads the frames of a WAL file at start and decides which are applied now and which are deferred.

`engine/recovery/replay` applies frames; `engine/recovery/deferred_load` has the rules for deferred ones.
"""

from collections.abc import Iterator

from driftq.engine.engine_time import EngineTime
from driftq.engine.recovery.deferred_load import Late
from driftq.engine.recovery.derived_copies import Deriver
from driftq.engine.recovery.replay import Replay
from driftq.storage.blocks.frame import Frame, Kind
from driftq.storage.blocks.frame_columns import WRITER
from driftq.storage.wal.wal_head import FileHead
from driftq.storage.wal.wal_reader import Damage, WalScan
from driftq.storage.wal.wal_replayed import LogBytes

_STEP_FRAMES = 1024
"""Number of frames in one step: some milliseconds of work."""
_APPEND = int(Kind.APPEND)


class Walk:
    """Applies the frames of files, one file after the other."""

    def __init__(self, frames: Replay, late: Late, time: EngineTime, deriver: Deriver | None) -> None:
        self._frames = frames
        self._late = late
        self._time = time
        self._router_kinds: frozenset[int] = frozenset() if deriver is None else deriver.kinds

    def over(self, scan: WalScan, log: LogBytes, path: str, head: FileHead | None) -> Iterator[float]:
        """Apply the frames of one file step by step; yields how much of it is done, from 0 to 1."""
        report, buffer = self._frames.report, log.content
        counted = report.frames
        for found in scan.walk():
            if isinstance(found, Frame):
                self._apply(found, scan, buffer, path)
            elif isinstance(found, Damage):
                self.load_late()
                self._frames.damaged(found, head)
            elif self._late.takes(found):
                self._late.put_off(path, scan.salt, found)
                self._time.found_stamp(found.ts)
            else:
                log.fill(found)
                scan.walk_into(found)
            if report.frames >= counted + _STEP_FRAMES:
                counted = report.frames
                yield found.end / len(buffer)
        self._frames.held.drop()

    def _apply(self, frame: Frame, scan: WalScan, buffer: bytes, path: str) -> None:
        frames, late = self._frames, self._late.left
        frames.report.frames += 1
        if frame.kind != _APPEND:
            if late and (frame.topic_id in late or frame.kind in self._router_kinds):
                self._before_control(frame)
            frames.apply(buffer, frame)
        elif frame.bits & WRITER:
            frames.held.add(buffer, frame)
        elif (late and frame.topic_id in late) or self._late.takes_frame(frame):
            self._late.keep(path, frame)
            self._time.found_stamp(frame.ts)
        else:
            frames.append(buffer, frame)
            if frame.count == 1:
                frames.report.frames += frames.append_run(scan, frame)

    def _before_control(self, frame: Frame) -> None:
        """Prepare for a control frame of a late topic, or for one about routers."""
        if frame.kind == Kind.TOPIC_DELETE:
            self._late.forget(frame.topic_id)
        else:
            self.load_late()

    def load_late(self) -> None:
        """Load deferred pieces at once, because the next operation needs them."""
        while self._late.left:
            for topic in self._late.step():
                topic.late = False
