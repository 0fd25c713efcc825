"""The bodies of the storage's own control frames, as msgpack. The engine's are in `engine.frames`."""

from msgspec import Struct, msgpack


class FileHead(Struct, frozen=True, array_like=True):
    """First frame of every WAL file: which run and shard wrote it, and how the file before it ended.

    `run` is the number of the run's first file. `previous` is the number of the file this shard wrote before in the
    same run, 0 for none, and `previous_end` how many bytes of it there are: all of them synced before this file began.
    What follows is new in version 2 (`storage.wal_head`). `boot_id` names the boot of the machine, zeros if unknown.
    """

    run: int
    shard: int
    shards: int
    previous: int
    previous_end: int
    salt: bytes = b""
    boot_id: bytes = b""
    written_by: str = ""
    """The version of DriftQ."""


_file_head = msgpack.Decoder(FileHead)
_encoder = msgpack.Encoder()


def encode_file_head(head: FileHead) -> bytes:
    """To bytes."""
    return _encoder.encode(head)


def decode_file_head(body: bytes) -> FileHead:
    """From bytes."""
    return _file_head.decode(body)
