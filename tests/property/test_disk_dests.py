"""`disk` topics that routers copy into and clients write to, over crashes in the middle of anything.

A history goes on while writes are under way: a step is a request that is handed in, or some turns of the loop, or some
time. A crash comes between two steps or before a call of the disk, also one of a log writer that has a part of what it
was sent. In some histories writes of the log fail for a while, also those of a start. What readers could see at the
moment of a crash, on stable storage or not, is never another record afterwards.
"""

import errno
import random
from collections.abc import Iterator

import pytest

from driftq.engine.state.topic import Topic
from driftq.testing import CrashMode, FaultyDisk, ServerRig, SimDisk
from driftq.testing.server_rig import settled

SEEDS = range(60)
_DIRECT = ("a", "a", "a", "b", "b", "c")
_ROUTERS = (("ab", "a", "b"), ("bc", "b", "c"))
_ACTS = ("write", "turn", "read", "run", "time", "checkpoint", "router", "config")
_WEIGHTS = (12, 8, 2, 4, 3, 0.4, 0.4, 1)


class Shown:
    """A server with a chain of `disk` topics, and every record that was ever shown in each of them."""

    def __init__(self, seed: int, error: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.fails = False
        self.error = error
        """What writes of the log fail with in this history; None where they work."""
        self.failed = 0
        self.rig = ServerRig(
            seed=seed,
            wal_shards=self.rng.choice((1, 1, 1, 2, 3)),
            checkpoint_interval_ms=10**9,
            wrap=lambda disk: FaultyDisk(disk, error=error or errno.EIO, forever=True, when=self.strikes),
        )
        self.seen: dict[str, dict[int, bytes]] = {"a": {}, "b": {}, "c": {}}
        self.values = 0
        self.image: SimDisk | None = None
        """The disk at the moment of the next crash, if that has come already."""
        self.promised: dict[str, dict[int, bytes]] = {}
        """What was shown at that moment."""
        self.ready = False
        self.rig.disk.on_call = self.called
        self.rig.ok("PUT", "/v0/topics/a", {"durability": self.rng.choice(("disk", "disk", "fsync", "memory"))})
        for topic in ("b", "c"):
            self.rig.ok("PUT", f"/v0/topics/{topic}", {"durability": "disk"})
        for name, source, dest in _ROUTERS:
            self.put_router(name, source, dest)
        self.ready = True

    def called(self, operation: str, path: str) -> None:
        """Maybe this is the moment of the next crash."""
        if self.ready and self.rng.random() < 0.1:
            self.image = self.rig.disk.fork()
            self.promised = {name: dict(seen) for name, seen in self.seen.items()}
            for name, seen in self.promised.items():
                if self.rig.server.engine.topic(name).keeps_head:
                    seen.update(shown(self.rig.server.engine.topic(name)))

    def strikes(self, operation: str, path: str) -> bool:
        """Whether a call of the disk fails."""
        strikes = self.fails and operation == "pwritev" and "/wal/" in path
        self.failed += strikes
        return strikes

    def put_router(self, name: str, source: str, dest: str) -> None:
        """Give a router some filter and guarantee."""
        body = {
            "source": source,
            "dest": dest,
            "filter": self.rng.choice((None, None, "x")),
            "guarantee": self.rng.choice(("at_least_once", "exactly_once")),
        }
        if self.error is None:
            self.rig.ok("PUT", f"/v0/routers/{name}", body)
        else:
            self.rig.send("PUT", f"/v0/routers/{name}", body)
            self.rig.run()

    def step(self) -> None:
        """Hand in a write, or let some of what is under way happen."""
        rng, rig = self.rng, self.rig
        if self.error is not None:
            self.fails = rng.random() < (0.7 if self.fails else 0.2)
        act = rng.choices(_ACTS, _WEIGHTS)[0]
        if act == "write":
            self.write()
        elif act == "turn":
            for _ in range(rng.choice((1, 2, 5))):
                rig.runtime.turn()
        elif act == "read":
            rig.send("POST", f"/v0/topics/{rng.choice('bc')}/diff", {"from_seq": 0})
        elif act == "run":
            rig.run()
        elif act == "time":
            rig.advance(rng.choice((1, 11, 60, 70_000)))
        elif act == "checkpoint":
            rig.server.engine.checkpointer.run()
        elif act == "config":
            cap = rng.choice((0, 20, 400))
            config = {"durability": "disk", "cap_records": cap, "discard": rng.choice(("old", "reject"))}
            rig.send("PUT", f"/v0/topics/{rng.choice('bc')}", config)
        else:
            self.put_router(*rng.choice(_ROUTERS))

    def write(self) -> None:
        """Hand in some records; no loop turn runs."""
        records = []
        for _ in range(self.rng.choice((1, 1, 2, 5, 60))):
            self.values += 1
            padding = "x" * self.rng.choice((0, 0, 0, 3000))
            records.append({"data": f"{self.values}{padding}"} | ({"tag": "x"} if self.rng.random() < 0.7 else {}))
        self.rig.send("POST", f"/v0/topics/{self.rng.choice(_DIRECT)}", {"records": records})

    def note(self, when: str) -> None:
        """Compare what is shown now with what was shown before, and remember it."""
        for name, seen in self.seen.items():
            topic = self.rig.server.engine.topic(name)
            if not topic.keeps_head:
                continue
            for seq, data in shown(topic):
                before = seen.setdefault(seq, data)
                assert before == data, f"{when}: {name} {seq} was {before[:9]!r} and is {data[:9]!r}"
            assert topic.head >= max(seen, default=0), f"{when}: {name} would give a seq out again"

    def lose(self) -> str:
        """Lose the power, or the server with its log writers, or the server alone."""
        mode = self.rng.choice(["kill", "kill", "alone", *CrashMode])
        self.ready = self.fails = False
        if mode == "alone":
            for writer_process in self.rig.runtime.writer_processes:
                writer_process.drain()
        elif self.image is not None:
            self.rig.disk, self.seen = self.image, self.promised
        if isinstance(mode, CrashMode):
            self.rig.crash(mode, self.rng.randrange(100))
        else:
            self.rig.kill()
        self.rig.disk.on_call = self.called
        self.image, self.ready = None, True
        self.fails = self.error is not None and self.rng.random() < 0.4
        return str(mode)


def shown(topic: Topic) -> Iterator[tuple[int, bytes]]:
    """Yield the records of a topic as a reader who drives no router finds them."""
    for part in list(topic.parts(topic.earliest)):
        rows = topic.source(part)
        assert rows is not None
        yield from zip(range(part.first_seq, part.first_seq + part.count), rows.data(0, part.count), strict=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seq_of_a_disk_dest_that_was_shown_never_holds_another_record(seed: int) -> None:
    """proves: G-COPY-3, G-SEQ-2; direct writes among copies, each crash in the middle of what is under way."""
    live_and_crash(Shown(seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_it_never_does_where_writes_of_the_log_fail(seed: int) -> None:
    """proves: G-COPY-3, G-SEQ-2; also where the write that failed was shown, or was a mark of a start."""
    world = Shown(seed, (errno.EIO, errno.ENOSPC)[seed % 2])
    live_and_crash(world)
    for _ in range(20):
        if not world.failed:
            live_and_crash(world, lives=1)
    assert world.failed


def live_and_crash(world: Shown, lives: int = 4) -> None:
    """Go through some lives, and check after each step and each crash what is shown."""
    for life in range(lives):
        for _ in range(world.rng.randrange(40)):
            world.step()
            world.note("live")
        mode = world.lose()
        world.note(f"life {life}, after {mode}")
        world.rig.run()
        world.note(f"life {life}, after {mode} and a run")


def cut_log_at(rig: ServerRig, text: bytes) -> None:
    """Zero the log from this text on, as if its writer had died in the middle of a write."""
    for name in rig.disk.names("/data/wal"):
        file = rig.disk.open(f"/data/wal/{name}")
        content = file.pread(file.size(), 0)
        if (at := content.find(text)) >= 0:
            file.pwritev([bytes(len(content) - at)], at)
        file.close()


def chained(*, written: bool) -> ServerRig:
    """A server with a router from `a` to `b`, and a direct write to `b` in the log or not."""
    rig = ServerRig(seed=1, checkpoint_interval_ms=10**9)
    for topic in ("a", "b"):
        rig.ok("PUT", f"/v0/topics/{topic}", {"durability": "disk"})
    rig.ok("PUT", "/v0/routers/ab", {"source": "a", "dest": "b"})
    rig.write("a", "first")
    rig.diff("b")
    if written:
        rig.write("b", "earlier")
    rig.advance(100)
    return rig


def test_a_copy_never_takes_the_seq_of_a_direct_write_that_was_lost() -> None:
    """proves: G-COPY-3, G-SEQ-2; in the log the record comes before the direct write, and its copy came after it."""
    rig = chained(written=True)
    rig.send("POST", "/v0/topics/a", {"records": [{"data": "second"}]})
    answer = rig.send("POST", "/v0/topics/b", {"records": [{"data": "direct"}]})
    for _ in range(5):
        rig.runtime.turn()
    before = dict(shown(rig.server.engine.topic("b")))
    assert settled(answer) is None
    assert before == {1: b'"first"', 2: b'"earlier"'}
    rig.runtime.run_until_idle()
    cut_log_at(rig, b"direct")
    rig.kill()
    assert dict(shown(rig.server.engine.topic("b"))) == before | {3: b'"second"'}


def test_copies_keep_their_seqs_in_a_dest_that_nobody_else_writes_to() -> None:
    """proves: G-COPY-3; the log writer died, and what was shown is where it was."""
    rig = chained(written=False)
    rig.write("a", *map(str, range(40)))
    rig.diff("b")
    rig.advance(100)
    before = dict(shown(rig.server.engine.topic("b")))
    assert len(before) == 41
    rig.send("POST", "/v0/topics/a", {"records": [{"data": "lost"}]})
    rig.run()
    cut_log_at(rig, b"lost")
    rig.kill()
    assert dict(shown(rig.server.engine.topic("b"))) == before
    rig.advance(100)
    raised = rig.server.engine.topic("b").head
    assert raised > 42
    rig.write("a", "next")
    assert [record["data"] for record in rig.diff("b", raised)["records"]] == ["next"]


def test_a_direct_write_waits_for_a_sync_only_while_a_record_is_not_copied_yet() -> None:
    """proves: G-COPY-3"""
    rig = chained(written=True)
    rig.runtime.hold("driftq-wal-0")
    for number in range(20):
        rig.write("a", number)
        assert rig.ask("POST", "/v0/topics/b", {"records": [{"data": "direct"}]}).status == 200
    assert rig.server.engine.topic("b").head == 42
    rig.send("POST", "/v0/topics/a", {"records": [{"data": "not copied yet"}]})
    waits = rig.send("POST", "/v0/topics/b", {"records": [{"data": "direct"}]})
    rig.run()
    assert (settled(waits), rig.server.engine.topic("b").head) == (None, 42)
    rig.runtime.release("driftq-wal-0")
    rig.run()
    assert settled(waits) is not None
    assert rig.server.engine.topic("b").head == 44
