"""An engine with staged writes on a simulated disk."""

from typing import Any

from driftq.features.staging.staged_parts import PartAddress
from driftq.features.staging.staging import CommitResult, PartRef, StageResult, Staging
from driftq.storage.layout import Layout
from driftq.system.runtime import Pending
from driftq.testing import EngineRig, rows_of


class StagingRig(EngineRig):
    """With the words of a writer."""

    def __init__(self, ttl_ms: int = 60_000, **changes: Any) -> None:
        self._ttl_ms = ttl_ms
        super().__init__(features=lambda: (Staging(self._ttl_ms),), **changes)

    def start(self) -> None:
        """Open the staging behind the engine."""
        super().start()
        self.staging.open(self.engine, self.runtime, Layout(self.order, self.settings.data_dir))

    @property
    def staging(self) -> Staging:
        """The feature."""
        (found,) = self.features
        assert isinstance(found, Staging)
        return found

    def stage_nowait(
        self, *datas: object, writer: str = "w", batch: int = 1, part: int = 0, attempt: int = 0, chunk: int = 0
    ) -> Pending[StageResult]:
        """Stage values for topic `a`."""
        return self.staging.stage("a", writer, PartAddress(batch, part, attempt, chunk), rows_of(datas))

    def stage(self, *datas: object, **address: Any) -> StageResult:
        """The same, and wait."""
        return self.run(self.stage_nowait(*datas, **address))

    def commit_nowait(
        self, *parts: PartRef, writer: str = "w", batch: int = 1, epoch: int | None = None
    ) -> Pending[CommitResult]:
        """Commit parts to topic `a`; part 0 when none is named."""
        return self.staging.commit("a", writer, batch, parts or (PartRef(0, 0, 1),), epoch)

    def commit(self, *parts: PartRef, **options: Any) -> CommitResult:
        """The same, and wait."""
        return self.run(self.commit_nowait(*parts, **options))

    def values(self) -> list[Any]:
        """What readers see."""
        return [record["data"] for record in self.walk("a")[0]]

    def files(self) -> list[str]:
        """What lies below `stage/`."""
        return self.disk.names("/data/stage")
