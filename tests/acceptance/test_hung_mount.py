"""A cold directory that hangs under a server with real threads and files: what waits, and what does not."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from driftq.config import Settings
from driftq.errors import StartError
from driftq.features.backup import backups
from driftq.http.answer import StreamAnswer
from driftq.http.app import App
from driftq.http.keys import ApiKeys
from driftq.http.request import Request
from driftq.server import Server
from driftq.system.clock import SystemClock
from driftq.system.disk import OsDisk
from driftq.system.hang_guard import Patience, PatientDisk
from driftq.system.runtime import AsyncioRuntime, Pending
from driftq.testing.hanging_disk import HangingDisk
from driftq.testing.server_rig import KeptSink
from tests.support.process import PATIENCE_S

WAIT_S, LOOP_WAIT_S = 1.0, 0.05


class Rig:
    """A server in this process, with 24 records of topic `t` in three cold segments, and one of `u` that is hot."""

    def __init__(self, directory: Path, **config: Any) -> None:
        cold = str(directory / "cold")
        self.backups = str(directory / "backups")
        self.settings = Settings(
            data_dir=str(directory / "data"),
            cold_dir=cold,
            backup_dir=self.backups,
            segment_max_events=8,
            hot_retain_segments=0,
            cache_bytes=1,
        )
        self.hanging = HangingDisk(OsDisk(), cold)
        self.patience = Patience(WAIT_S)
        self.config = config

    async def start(self) -> None:
        """Start the server, and fill it."""
        self.runtime = AsyncioRuntime(asyncio.get_running_loop())
        disk = PatientDisk(self.hanging, str(self.settings.cold_dir), self.patience)
        self.server = Server(self.settings, disk, SystemClock(), self.runtime)
        self.patience.hurry(LOOP_WAIT_S)
        self.app = App(self.server, ApiKeys.parse(""))
        await self.ask("PUT", "/v0/topics/t", self.config)
        for first in range(1, 25, 4):
            await self.write("t", *range(first, first + 4))
        await self.write("u", 1)
        await self.until(lambda: len(self.topic.segments) >= 3 and all(s.sealed for s in self.topic.segments[:3]))
        await self.runtime.future(self.server.engine.checkpointer.run())
        await self.until(self._moved)
        for segment in self.topic.segments:
            self.server.engine.blocks.forget(self.topic.id, segment)

    def _moved(self) -> bool:
        assert self.server.engine.relocation is not None
        self.server.engine.relocation.run()
        return all(segment.cold for segment in self.topic.segments[:3])

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that a thread does."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110  # what it waits for happens on another thread
                await asyncio.sleep(0.01)

    @property
    def topic(self) -> Any:
        return self.server.engine.catalog.get("t")

    async def ask(self, method: str, path: str, value: object = None) -> tuple[int, Any]:
        """Return status and body of a request."""
        body = b"" if value is None else json.encode(value)
        headers = [(b"content-type", b"application/json")] if body else []
        answer: Any = self.app.handle(Request.of(method.encode(), path.encode(), headers, body))
        if isinstance(answer, Pending):
            answer = await self.runtime.future(answer)
        return answer.status, json.decode(answer.whole)

    async def write(self, topic: str, *datas: int) -> None:
        """Write records that must be taken."""
        status, body = await self.ask("POST", f"/v0/topics/{topic}", {"records": [{"data": data} for data in datas]})
        assert status in (200, 201), body

    async def diff(self, topic: str, from_seq: int = 0) -> tuple[int, Any]:
        return await self.ask("POST", f"/v0/topics/{topic}/diff", {"from_seq": from_seq})

    def stream(self, path: str) -> KeptSink:
        """Open an event stream."""
        answer = self.app.handle(Request.of(b"GET", path.encode(), [], b""))
        assert isinstance(answer, StreamAnswer), answer
        sink = KeptSink()
        answer.source.opened(sink)
        return sink

    async def stop(self) -> None:
        """Stop the server, whatever hangs."""
        async with asyncio.timeout(PATIENCE_S):
            await self.runtime.future(self.server.close())


def played(directory: Path, story: Callable[[Rig], Awaitable[None]], **config: Any) -> None:
    """Play a story on a rig that is gone afterwards."""

    async def play() -> None:
        rig = Rig(directory, **config)
        await rig.start()
        try:
            await story(rig)
        finally:
            rig.hanging.release()
            await rig.stop()

    asyncio.run(play())


def test_a_read_of_a_hung_cold_tier_is_refused_in_time_and_hot_reads_and_writes_do_not_wait(tmp_path: Path) -> None:
    """proves: G-IO-12; row: F-COLD-6"""

    async def story(rig: Rig) -> None:
        rig.hanging.hang()
        cold = asyncio.ensure_future(rig.diff("t"))
        await rig.until(lambda: rig.hanging.waiting > 0)
        assert (await rig.diff("u"))[0] == 200
        await rig.write("u", 2)
        await rig.write("t", 25)
        assert [record["$seq"] for record in (await rig.diff("t", 24))[1]["records"]] == [25]
        assert not cold.done(), "all of this while the cold read hangs"
        status, body = await cold
        assert (status, body["error"]["code"]) == (503, "cold_unavailable")
        waiting = rig.hanging.waiting
        status, body = await rig.diff("t")
        assert (status, body["error"]["code"], rig.hanging.waiting) == (503, "cold_unavailable", waiting), "at once"
        rig.hanging.release()
        await rig.until(lambda: rig.patience.stuck == 0)
        status, page = await rig.diff("t")
        assert [record["$seq"] for record in page["records"]] == list(range(1, 26))
        assert page["tombstone"] is None

    played(tmp_path, story)


def test_streams_of_a_hung_cold_tier_get_one_error_frame_and_go_on_when_it_answers(tmp_path: Path) -> None:
    """Watches and pushes of other topics do not wait. proves: G-IO-12; row: F-COLD-6"""

    async def story(rig: Rig) -> None:
        await rig.ask("PUT", "/v0/topics/jobs", {"type": "queue"})
        rig.hanging.hang()
        _, session = await rig.ask("POST", "/v0/watch", {"topics": {"t": {"from_seq": 0}, "u": {"from_seq": 0}}})
        watch = rig.stream(session["stream_url"])
        work = rig.stream("/v0/topics/t/work?node=w&max=24")
        other = rig.stream("/v0/topics/jobs/work?node=w&max=2")
        await rig.until(lambda: rig.hanging.waiting > 0)
        await rig.write("u", 2)
        await rig.write("jobs", 1)
        await rig.until(lambda: b'"$seq":2' in watch.data and b"event: job" in other.data)
        assert b"event: error" not in watch.data + work.data, "all of this while the cold read hangs"
        await rig.until(lambda: b"cold_unavailable" in watch.data and b"cold_unavailable" in work.data)
        await rig.write("u", 3)
        await rig.until(lambda: b'"$seq":3' in watch.data)
        rig.hanging.release()
        await rig.until(lambda: b'"$seq":24' in watch.data and work.data.count(b"event: job") == 24)
        for stream in (watch, work):
            assert stream.data.count(b"event: error") == 1
            assert b"tombstone" not in stream.data

    played(tmp_path, story, type="queue")


@pytest.mark.parametrize("config", [{"cap_records": 24}, {"ttl_ms": 3_600_000}], ids=["cap", "ttl"])
def test_retention_checkpoints_and_backups_do_not_hang_with_it(tmp_path: Path, config: dict[str, int]) -> None:
    """proves: G-IO-12; row: F-COLD-6"""

    async def story(rig: Rig) -> None:
        rig.hanging.hang()
        await rig.write("t", 25, 26)
        if "ttl_ms" in config:
            middle = rig.topic.segments[0].index.last_ts(0)
            rig.topic.expire(middle + config["ttl_ms"])
        else:
            assert rig.topic.count == 26, "the cap waits for the block in which the cut is"
        assert await rig.runtime.future(rig.server.engine.checkpointer.run())
        begun = (await rig.ask("POST", "/v0/backups", {"to": rig.backups}))[1]["backup"]["id"]
        backup = rig.server.backups.get(begun)
        await rig.until(lambda: backup.state in ("failed", "done"))
        assert backup.error is not None
        assert "does not answer" in backup.error
        rig.hanging.release()
        if "cap_records" in config:
            await rig.until(lambda: rig.topic.count == 24)
        assert rig.topic.holes.all == []

    played(tmp_path, story, **config)


def test_a_server_stops_while_its_cold_tier_hangs(tmp_path: Path) -> None:
    """proves: G-IO-12"""

    async def story(rig: Rig) -> None:
        rig.hanging.hang()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(rig.diff("t"), 0.01)
        await rig.stop()
        rig.hanging.release()

    async def play() -> None:
        rig = Rig(tmp_path)
        await rig.start()
        await story(rig)
        again = Rig(tmp_path)
        again.runtime = AsyncioRuntime(asyncio.get_running_loop())
        again.server = Server(again.settings, OsDisk(), SystemClock(), again.runtime)
        assert again.topic.count == 24
        await again.stop()

    asyncio.run(play())


def test_a_start_on_a_hung_cold_tier_is_refused_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """proves: G-IO-12; row: F-START-5"""
    rig = Rig(tmp_path)
    resolve = os.path.realpath

    def resolved(path: str) -> str:
        assert not path.startswith(str(rig.settings.cold_dir)), "this call would hang, and nobody would give up on it"
        return resolve(path)

    async def play() -> None:
        rig.hanging.hang()
        runtime = AsyncioRuntime(asyncio.get_running_loop())
        disk = PatientDisk(rig.hanging, str(rig.settings.cold_dir), rig.patience)
        with monkeypatch.context() as patch:
            patch.setattr(os.path, "realpath", resolved)
            with pytest.raises(StartError, match="cold cannot be used: the file system does not answer"):
                Server(rig.settings, disk, SystemClock(), runtime)
        rig.hanging.release()

    asyncio.run(play())
    assert not (tmp_path / "data").exists(), "a refused start has made nothing"


@pytest.mark.parametrize("where", ["cold", "backups"])
def test_a_request_for_a_backup_never_waits_for_a_mount_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """proves: G-IO-12"""
    hung, release, resolve = str(tmp_path / where), threading.Event(), os.path.realpath

    def resolved(path: str) -> str:
        if path.startswith(hung):
            assert threading.current_thread() is not threading.main_thread(), "the loop would hang"
            release.wait()
        return resolve(path)

    async def story(rig: Rig) -> None:
        monkeypatch.setattr(os.path, "realpath", resolved)
        for _ in range(2):
            status, body = await rig.ask("POST", "/v0/backups", {"to": rig.backups})
            if where == "cold":
                assert status in (202, 429), "whether the backup works is found out on its thread"
            else:
                assert (status, body["error"]["code"]) == (500, "internal")
                assert body["error"]["message"] == f"{rig.backups} cannot be used: the file system does not answer"
        release.set()

    played(tmp_path, story)


def test_a_backup_directory_that_hangs_at_the_start_delays_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """proves: G-IO-12"""
    release = threading.Event()

    def newest_ts(*_: object) -> None:
        release.wait()

    monkeypatch.setattr(backups, "newest_ts", newest_ts)

    async def play() -> None:
        runtime = AsyncioRuntime(asyncio.get_running_loop())
        settings = Settings(data_dir=str(tmp_path / "data"), backup_dir=str(tmp_path / "backups"))
        server = Server(settings, OsDisk(), SystemClock(), runtime)
        async with asyncio.timeout(PATIENCE_S):
            assert await runtime.future(server.engine.checkpointer.run())
            await runtime.future(server.close())

    try:
        asyncio.run(play())
    finally:
        release.set()
