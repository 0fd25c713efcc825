"""Without a crash, the simulated disk is a file system like any other: the same calls as on a real one, compared."""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from driftq.system.disk import Disk, File, OsDisk, Site, read_file
from driftq.testing import CrashMode, SimDisk

# Few names, so that files, directories and missing ones meet; "a" and "d" are sometimes a file and sometimes not.
PATHS = st.sampled_from(["a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "a/x"])
OFFSETS = st.sampled_from([0, 1, 7, 511, 512, 4_095, 4_096, 5_000, 20_000])
PARTS = st.sampled_from([b"", b"x", b"abcdefg", b"y" * 600, b"z" * 9_000, bytes(5_000)])
BUFFERS = st.lists(PARTS, min_size=1, max_size=3)
T = TypeVar("T")
NUMBERS = st.integers(0, 50)


def _outcome(call: Callable[[], T]) -> T | str:
    try:
        return call()
    except OSError as error:
        return f"errno {error.errno}"


class _LikeOs(RuleBasedStateMachine):
    """Every call goes to both disks, each below its own root, and both must answer alike."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory()
        self.sim = SimDisk(["/data"])
        self.disks: list[tuple[Disk, str]] = [(self.sim, "/data"), (OsDisk(), self.scratch.name)]
        self.handles: list[list[File]] = []

    def teardown(self) -> None:
        for pair in self.handles:
            for file in pair:
                file.close()
        self.scratch.cleanup()

    def both(self, call: Callable[[Disk, str], object]) -> None:
        ours, theirs = [_outcome(partial(call, disk, f"{root}/")) for disk, root in self.disks]
        assert ours == theirs

    def handle(self, call: Callable[[Disk, str], File]) -> None:
        ours, theirs = [_outcome(partial(call, disk, f"{root}/")) for disk, root in self.disks]
        if isinstance(ours, str) or isinstance(theirs, str):
            assert ours == theirs
        else:
            self.handles.append([ours, theirs])

    def on_handle(self, number: int, call: Callable[[File], object]) -> None:
        ours, theirs = [_outcome(partial(call, file)) for file in self.handles[number % len(self.handles)]]
        assert ours == theirs

    @rule(path=PATHS)
    def create(self, path: str) -> None:
        self.handle(lambda disk, root: disk.create(root + path))

    @rule(path=PATHS)
    def open(self, path: str) -> None:
        self.handle(lambda disk, root: disk.open(root + path))

    @rule(path=PATHS)
    def mkdir(self, path: str) -> None:
        self.both(lambda disk, root: disk.mkdir(root + path))

    @rule(old=PATHS, new=PATHS)
    def rename(self, old: str, new: str) -> None:
        # Directories are not renamed; and Linux has an error of its own for a file that replaces a directory above it.
        if not Path(self.scratch.name, old).is_dir() and not old.startswith(f"{new}/"):
            self.both(lambda disk, root: disk.rename(root + old, root + new))

    @rule(old=PATHS, new=PATHS)
    def link(self, old: str, new: str) -> None:
        if not Path(self.scratch.name, old).is_dir():
            self.both(lambda disk, root: disk.link(root + old, root + new))

    @rule(path=PATHS)
    def unlink(self, path: str) -> None:
        self.both(lambda disk, root: disk.unlink(root + path))

    @rule(path=PATHS)
    def remove_tree(self, path: str) -> None:
        self.both(lambda disk, root: disk.remove_tree(root + path))

    @rule(path=PATHS)
    def look(self, path: str) -> None:
        self.both(lambda disk, root: disk.exists(root + path))
        self.both(lambda disk, root: disk.names(root + path))
        self.both(lambda disk, root: disk.sync_dir(root + path, Site.WAL_DIR))

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS, buffers=BUFFERS, offset=OFFSETS)
    def write(self, number: int, buffers: list[bytes], offset: int) -> None:
        self.on_handle(number, lambda file: file.pwritev(buffers, offset))

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS, size=OFFSETS)
    def truncate(self, number: int, size: int) -> None:
        self.on_handle(number, lambda file: file.truncate(size))

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS, size=OFFSETS, offset=OFFSETS)
    def read(self, number: int, size: int, offset: int) -> None:
        self.on_handle(number, lambda file: file.pread(size, offset))
        self.on_handle(number, lambda file: file.size())

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS)
    def sync(self, number: int) -> None:
        self.on_handle(number, lambda file: file.sync(Site.WAL_COMMIT))

    @precondition(lambda self: self.handles)
    @rule(number=NUMBERS)
    def close(self, number: int) -> None:
        for file in self.handles.pop(number % len(self.handles)):
            file.close()

    @invariant()
    def both_hold_the_same(self) -> None:
        root = Path(self.scratch.name)
        theirs = {f"/data/{p.relative_to(root)}": p.read_bytes() if p.is_file() else None for p in root.rglob("*")}
        for disk in (self.sim, self.sim.fork(), self.sim.crash(CrashMode.KEEP, 0)):
            assert _tree(disk, "/data") == theirs


def _tree(disk: SimDisk, directory: str) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for name in disk.names(directory):
        path = f"{directory}/{name}"
        try:
            found[path] = read_file(disk, path)
        except IsADirectoryError:
            found[path] = None
            found |= _tree(disk, path)
    return found


TestLikeOs = _LikeOs.TestCase
TestLikeOs.settings = settings(stateful_step_count=40)
