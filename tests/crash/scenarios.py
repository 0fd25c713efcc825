"""What the sweeps run: one function per operation, short, with everything that can be under way at once."""

from driftq.testing import CrashMode
from tests.crash.world import World

_TAGS = ("a", "b", None)


def append(world: World) -> None:
    """Writes of every class, gathered and not, with and without keys."""
    world.start()
    names = ("fsync", "disk", "memory", "ephemeral")
    for name in names:
        world.put(name, name)
    world.settle()
    for turn in range(6):
        for name in names:
            world.append(name, 1 + turn % 2, tags=_TAGS, metas=["m", None])
            world.append(name, 1, nodes=["n"])
        world.append("fsync", 2, batch_node="b", key=f"k{turn}")
        world.append("disk", 1, key=f"k{turn}")
        if turn % 2:
            world.settle()
        else:
            world.runtime.turn()
    world.advance(20)
    world.append("disk", 2)
    world.append("memory", 2)
    world.advance(20)


def late(world: World) -> None:
    """Stretches of `memory` records, between others and over files, through crashes, deletes and a change of class."""
    world.start(segment_max_events=8, wal_file_bytes=12 << 10)
    names = ("memory", "other", "fsync", "disk")
    for name in names:
        world.put(name, "memory" if name == "other" else name)
    world.settle()
    for life, mode in enumerate((CrashMode.DROP, CrashMode.TORN, None)):
        for turn in range(5):
            world.append("memory", 1 + turn % 2, tags=_TAGS, key=f"k{life}.{turn}")
            world.append("other", 1)
            world.advance(20)
        world.append("fsync", 1)
        world.append("disk", 2)
        world.settle()
        world.append("memory", 3)
        world.append("other", 2)
        world.advance(20)
        if mode is not None:
            world.crash(mode, life)
            world.runtime.turn()
    world.delete("memory", before=4)
    world.append("memory", 2)
    world.checkpoint()
    world.append("memory", 2)
    world.append("other", 2)
    world.put("other", "fsync")
    world.settle()
    world.append("other", 1)
    world.append("memory", 1)
    world.advance(20)


def append_large(world: World) -> None:
    """Batches that are blocks of their own, and more than a file holds."""
    world.start()
    world.put("fsync", "fsync")
    world.put("disk", "disk")
    world.settle()
    world.append("fsync", 2)
    world.append("fsync", 260, tags=["big"], key="big")
    world.append("fsync", 1)
    world.append("disk", 300)
    world.runtime.turn()
    world.append("disk", 1)
    world.append("fsync", 20, padding=600)
    world.settle()
    world.append("disk", 270, tags=["big"])
    world.advance(20)


def rotate(world: World) -> None:
    """From WAL file to WAL file, with syncs and without."""
    world.start(wal_file_bytes=2048, segment_max_events=1000)
    world.put("fsync", "fsync")
    world.put("disk", "disk")
    world.settle()
    for turn in range(14):
        world.append("disk", 2, padding=150)
        if turn % 2:
            world.append("fsync", 1, padding=100, tags=["t"])
        if turn % 3 == 0:
            world.runtime.turn()
        else:
            world.settle()
    world.delete("fsync", seqs=[2])
    world.advance(20)


def seal(world: World) -> None:
    """Segments fill up, are sealed, and lose a few records."""
    world.start(segment_max_events=6)
    for name in ("fsync", "disk", "memory"):
        world.put(name, name)
    world.settle()
    for turn in range(7):
        for name in ("fsync", "disk", "memory"):
            world.append(name, 2, tags=_TAGS, metas=["m", None])
        world.settle()
        if turn == 3:
            world.delete("fsync", tag="a")
            world.delete("disk", before=3)
            world.settle()
    world.checkpoint()
    world.append("fsync", 3)
    world.append("disk", 3)
    world.advance(20)


def reseal(world: World) -> None:
    """A segment that is sealed, loses its tail in a crash, and is sealed again with other blocks and other tags."""
    world.start(segment_max_events=270)
    for name in ("disk", "memory"):
        world.put(name, name)
    world.settle()
    for name in ("disk", "memory"):
        world.append(name, 260, tags=["big"])
    world.advance(20)
    world.checkpoint()
    for name in ("disk", "memory"):
        world.append(name, 5, tags=["kept"])
    world.advance(20)
    for name in ("disk", "memory"):
        world.append(name, 7, tags=["a", "b"])
    world.settle()
    world.write_back("/data/topics")
    world.crash(CrashMode.DROP)
    for name in ("disk", "memory"):
        world.append(name, 9, tags=["c", "a"])
    world.advance(20)
    world.checkpoint()
    world.append("disk", 1)
    world.settle()


def flag_flip(world: World) -> None:
    """Deletes of every form, over sealed segments and the open block, with checkpoints between, under a cap."""
    world.start(segment_max_events=6)
    world.put("plain", "fsync")
    world.put("capped", "fsync", cap_records=12)
    world.put("lazy", "disk")
    world.settle()
    for _ in range(4):
        for name in ("plain", "capped", "lazy"):
            world.append(name, 4, tags=_TAGS)
        world.settle()
    world.delete("plain", tag="a")
    world.delete("capped", seqs=[9, 10])
    world.settle()
    world.checkpoint()
    world.delete("plain", prefix="b", before=11)
    world.append("plain", 2, tags=["b"])
    world.append("capped", 6, tags=_TAGS)
    world.delete("lazy", seqs=[2, 3, 14])
    world.settle()
    world.delete("capped", tag="b")
    world.advance(1100)
    world.append("capped", 3)
    world.settle()
    world.checkpoint()
    world.delete("capped", before=12)
    world.delete("plain", before=8)
    world.append("capped", 1)
    world.advance(1100)


def checkpoint(world: World) -> None:
    """Checkpoints over every class, with segments to name, segments to drop, keys, and writes that overtake them."""
    world.start(segment_max_events=6, wal_file_bytes=4096)
    for name in ("fsync", "disk", "memory", "ephemeral"):
        world.put(name, name)
    world.put("capped", "fsync", cap_records=8)
    world.settle()
    for turn in range(3):
        for name in ("fsync", "disk", "memory", "ephemeral", "capped"):
            world.append(name, 3, tags=_TAGS)
            world.append(name, 1, key=f"k{turn}")
        world.settle()
    world.checkpoint()
    world.append("capped", 5, tags=_TAGS)
    world.delete("fsync", before=8)
    world.append("fsync", 2)
    world.settle()
    world.engine.checkpointer.run()
    world.append("fsync", 2, key="late")
    world.append("disk", 2)
    world.delete("disk", tag="a")
    world.settle()
    world.put("new", "fsync")
    world.append("new", 1)
    world.settle()
    world.checkpoint()
    world.append("memory", 1)
    world.advance(20)


def graceful(world: World) -> None:
    """A graceful stop, and the start behind it."""
    world.start(segment_max_events=6)
    for name in ("fsync", "disk", "memory", "ephemeral"):
        world.put(name, name)
    world.settle()
    for name in ("fsync", "disk", "memory", "ephemeral"):
        world.append(name, 8, tags=_TAGS, key="k")
    world.settle()
    world.append("disk", 3)
    world.runtime.turn()
    world.delete("fsync", tag="b")
    world.close()
    world.append("disk", 2)
    world.append("fsync", 2)
    world.settle()
    world.append("fsync", 3, tags=_TAGS)
    world.delete("disk", tag="b")
    world.close()


def relocate(world: World) -> None:
    """Segments move to the cold tier while records are deleted, and go for good there."""
    world.start(segment_max_events=6, cold_dir="/cold", hot_retain_segments=1)
    world.put("plain", "fsync")
    world.put("capped", "fsync", cap_records=16)
    world.settle()
    for _ in range(3):
        world.append("plain", 7, tags=_TAGS, metas=["m", None], nodes=["n", None])
        world.append("capped", 7, tags=_TAGS)
        world.settle()
    world.checkpoint()
    world.delete("plain", seqs=[2])
    world.settle()
    assert world.engine.relocation is not None
    world.engine.relocation.run()
    world.delete("plain", seqs=[3, 8])
    world.delete("capped", tag="a")
    world.settle()
    world.checkpoint()
    world.delete("plain", tag="b")
    world.append("capped", 6)
    world.advance(1100)
    world.checkpoint()
    world.delete("plain", before=8)
    world.advance(5100)
    world.checkpoint()
    world.append("plain", 1)
    world.settle()


def delete_topic(world: World) -> None:
    """Topics come, go and come again, over checkpoints and shards."""
    world.start(segment_max_events=4, wal_shards=2)
    for name in ("one", "two", "three"):
        world.put(name, "fsync")
    world.settle()
    for name in ("one", "two", "three"):
        world.append(name, 5, tags=_TAGS, key="k")
    world.settle()
    world.drop("one")
    world.append("two", 1)
    world.settle()
    world.put("one", "disk")
    world.settle()
    world.append("one", 5, key="k")
    world.settle()
    world.checkpoint()
    world.drop("two")
    world.settle()
    world.put("two", "fsync")
    world.settle()
    world.append("two", 2)
    world.drop("three")
    world.settle()
    world.checkpoint()
    world.drop("one")
    world.settle()
    world.put("one", "fsync", cap_records=3)
    world.settle()
    world.append("one", 5, tags=_TAGS)
    world.advance(20)


def class_change(world: World) -> None:
    """Every class into another, with records acked under each."""
    world.start(segment_max_events=6)
    world.put("a", "ephemeral")
    world.put("b", "fsync")
    world.put("c", "disk")
    world.settle()
    for one, two, three in (
        ("fsync", "disk", "memory"),
        ("memory", "fsync", "fsync"),
        ("disk", "ephemeral", "disk"),
        ("ephemeral", "fsync", "ephemeral"),
        ("fsync", "memory", "fsync"),
    ):
        for name in "abc":
            world.append(name, 3, tags=_TAGS)
        world.settle()
        world.append("a", 1)
        world.put("a", one)
        world.put("b", two)
        world.append("b", 1)
        world.put("c", three)
        world.settle()
        if one == "memory":
            world.checkpoint()
    for name in "abc":
        world.append(name, 2)
    world.advance(20)


def mixed_classes(world: World) -> None:
    """Topics that are `ephemeral` for a time, with limits that take of both kinds of records."""
    world.start(segment_max_events=4)
    world.put("before", "ephemeral")
    world.put("between", "fsync", cap_records=8)
    world.put("aging", "ephemeral", ttl_ms=1000)
    world.settle()
    for name in ("before", "between", "aging"):
        world.append(name, 6, tags=_TAGS)
    world.settle()
    world.put("between", "ephemeral", cap_records=8)
    world.advance(600)
    for name in ("between", "aging"):
        world.append(name, 4)
    world.settle()
    world.put("before", "disk", cap_records=5)
    world.put("between", "fsync", cap_records=8)
    world.put("aging", "fsync", ttl_ms=1000)
    world.settle()
    for turn in range(5):
        for name in ("before", "between", "aging"):
            world.append(name, 2)
        world.advance(120)
        if turn == 2:
            world.delete("between", tag="a")
            world.checkpoint()
    world.advance(20)


def retention(world: World) -> None:
    """Caps and TTL, alone and together, tightened and relaxed, with readers looking."""
    world.start(segment_max_events=5)
    world.put("records", "fsync", cap_records=6)
    world.put("bytes", "disk", cap_bytes=80)
    world.put("aging", "fsync", ttl_ms=3000)
    world.put("both", "fsync", ttl_ms=4000, cap_records=7)
    world.settle()
    for turn in range(5):
        for name in ("records", "bytes", "aging", "both"):
            world.append(name, 3, tags=_TAGS)
        world.advance(900)
        if turn == 1:
            world.delete("records", tag="a")
            world.delete("both", tag="b")
            world.settle()
        if turn == 2:
            world.checkpoint()
        if turn == 3:
            world.put("records", "fsync", cap_records=4)
            world.put("aging", "fsync", ttl_ms=1500)
            world.settle()
            world.put("records", "fsync")
            world.put("aging", "fsync")
            world.settle()
    world.advance(2500)
    world.append("aging", 2)
    world.append("bytes", 9)
    world.settle()
    world.checkpoint()
    world.advance(20)


def shards(world: World) -> None:
    """Shard counts that change at every restart, some of them crashes."""
    world.start(wal_shards=1, wal_file_bytes=4096, segment_max_events=6)
    names = ("fsync", "disk", "other", "fourth")
    for name in names:
        world.put(name, "disk" if name == "disk" else "fsync")
    world.settle()
    _write_all(world, names)
    world.kill(wal_shards=4)
    _write_all(world, names)
    world.crash(CrashMode.DROP, wal_shards=2)
    world.put("fifth", "fsync")
    world.settle()
    _write_all(world, (*names, "fifth"))
    world.drop("other")
    world.checkpoint()
    _write_all(world, ("fsync", "disk", "fifth"))
    world.crash(CrashMode.REORDER, 7, wal_shards=3)
    world.put("other", "fsync")
    world.settle()
    _write_all(world, ("other", "disk", "fourth"))


def _write_all(world: World, names: tuple[str, ...]) -> None:
    for name in names:
        world.append(name, 2, tags=_TAGS)
    world.runtime.turn()
    for name in names:
        world.append(name, 1)
    world.settle()
    world.delete(names[0], seqs=[2])
    world.settle()


def restarts(world: World) -> None:
    """One crash behind the other, with holes, caps and checkpoints in between."""
    world.start(segment_max_events=6, wal_file_bytes=4096)
    names = ("fsync", "disk", "memory", "capped")
    for name in ("fsync", "disk", "memory"):
        world.put(name, name)
    world.put("capped", "disk", cap_records=7)
    world.settle()
    for life, mode in enumerate((CrashMode.DROP, CrashMode.REORDER, CrashMode.TORN, CrashMode.DROP)):
        for name in names:
            world.append(name, 3, tags=_TAGS, key=f"k{life}")
        world.advance(20)
        world.delete("disk", tag="a")
        world.delete("capped", before=3 + life)
        for name in names:
            world.append(name, 2)
        world.settle()
        if life == 2:
            world.checkpoint()
        for name in names:
            world.append(name, 1, tags=["late"])
        world.runtime.turn()
        world.runtime.run_until_idle()
        world.crash(mode, life, wal_shards=1 + life % 2)
    for name in names:
        world.append(name, 2)
    world.advance(20)
