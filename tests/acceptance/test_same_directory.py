"""Both tiers in one directory: nobody should, and nothing may be lost when somebody does."""

import asyncio
from pathlib import Path

from driftq.codec.write_body import make_rows
from driftq.config import Settings
from driftq.engine.engine import Engine
from driftq.model.topic_config import Durability, TopicConfig
from driftq.system.clock import SystemClock
from driftq.system.disk import OsDisk
from driftq.system.runtime import AsyncioRuntime


def test_a_start_removes_only_files_of_the_tier_it_looks_at(tmp_path: Path) -> None:
    settings = Settings(data_dir=str(tmp_path), cold_dir=str(tmp_path), segment_max_events=100)

    async def life() -> tuple[int, int]:
        runtime = AsyncioRuntime(asyncio.get_running_loop())
        engine = Engine(OsDisk(), SystemClock(), runtime, settings)
        for _ in range(10):
            rows = make_rows([b"1"] * 50)
            await runtime.future(engine.append("t", rows, config=TopicConfig(durability=Durability.FSYNC)))
        topic = engine.topic("t")
        found = topic.head, topic.count
        await runtime.future(engine.close())
        return found

    lives = [asyncio.run(life()) for _ in range(3)]
    assert lives == [(500, 500), (1000, 1000), (1500, 1500)]
