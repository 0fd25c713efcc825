"""Memory for a large body, which is received there piece by piece and is not copied again."""

from contextlib import suppress


def body_room(length: int) -> memoryview:
    """Return `length` writable bytes, at least one. A page takes no memory before something is written to it.

    The kernel may provide the memory in steps of 2 MiB instead of page by page, which takes a quarter of the time.
    """
    import mmap  # imported only if an answer is large

    room = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without large pages provides small ones
            room.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(room)
