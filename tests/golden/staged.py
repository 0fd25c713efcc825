"""A data directory with staged parts, commits and named cursors, in the checkpoint and behind it."""

from typing import Any

from msgspec import structs

from driftq.config import Settings
from driftq.features.cursors import NamedCursors
from driftq.features.staging.staged_parts import PartAddress
from driftq.features.staging.staging import CommitResult, PartRef, Staging
from driftq.model.topic_config import Durability
from driftq.storage.layout import Layout
from driftq.system.runtime import Pending
from driftq.testing import SimDisk
from driftq.testing.engine_rig import SMALL, EngineRig, rows_of

FORMAT = 1
SETTINGS: Settings = structs.replace(SMALL, wal_file_bytes=16 << 10)
_TTL_MS = 1 << 40


class StagedRig(EngineRig):
    """An engine with both features."""

    def __init__(self, disk: SimDisk) -> None:
        super().__init__(SETTINGS, disk=disk, features=lambda: (Staging(_TTL_MS), NamedCursors()))

    def start(self) -> None:
        """Open the features behind the engine."""
        super().start()
        staging, cursors = self.features
        assert isinstance(staging, Staging)
        assert isinstance(cursors, NamedCursors)
        self.staging, self.cursors = staging, cursors
        self.cursors.bind(self.engine)
        self.staging.open(self.engine, self.runtime, Layout(self.order, self.settings.data_dir))

    def stage(self, writer: str, batch: int, *datas: object, **columns: Any) -> None:
        """One part."""
        self.run(self.staging.stage("t", writer, PartAddress(batch, 0, 0, 0), rows_of(datas, **columns)))

    def commit(self, writer: str, batch: int) -> Pending[CommitResult]:
        """That part, published."""
        done = self.staging.commit("t", writer, batch, [PartRef(0, 0, 1)])
        self.runtime.run_until_idle()
        return done


def build() -> StagedRig:
    """The run; it ends without a word."""
    rig = StagedRig(SimDisk(roots=("/data", "/cold")))
    rig.put("t", Durability.FSYNC)
    for batch in (0, 1):
        rig.stage("größe/1", batch, batch, "a", tags=["x", None], nodes=[None, "n"], metas=[b'{"k":"v"}', None])
        rig.commit("größe/1", batch)
    rig.run(rig.cursors.put("t", "reader", 2, meta={"host": "a"}))
    rig.run(rig.cursors.put("t", "gone", 1))
    rig.checkpoint()
    rig.stage("größe/1", 2, *range(300))
    rig.commit("größe/1", 2)
    rig.stage("w2", (1 << 64) - 1, "last")
    rig.commit("w2", (1 << 64) - 1)
    rig.run(rig.cursors.put("t", "reader", 4))
    rig.run(rig.cursors.put("t", "back", 4))
    rig.run(rig.cursors.put("t", "back", 1, rewind=True))
    rig.run(rig.cursors.delete("t", "gone"))
    rig.stage("größe/1", 3, "waits", {"for": "its commit"}, batch_node="n")
    rig.runtime.advance(20)
    return rig


def picture(rig: StagedRig) -> dict[str, Any]:
    """What is found: records, writers, cursors, and what a commit of the waiting part gives."""
    writers = {name: rig.staging.writer("t", name) for name in ("größe/1", "w2")}
    found: dict[str, Any] = {
        "writers": {name: [last.batch, last.first, last.last] for name, last in writers.items()},
        "cursors": {name: [c.seq, c.updated_ts, c.meta] for name, c in rig.cursors.all("t").items()},
        "deduped": rig.commit("größe/1", 2).result().deduped,
    }
    rig.commit("größe/1", 3).result()
    return found | {"records": rig.walk("t")[0]}
