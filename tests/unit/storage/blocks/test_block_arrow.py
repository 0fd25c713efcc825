"""Arrow over a block is the block's own memory, and shows what any reader of the block sees."""

import subprocess
import sys

import pyarrow as pa
from hypothesis import given

from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.blocks.block_arrow import Array, block_arrays, block_batch, record_schema
from tests.unit.storage import samples


def memory_of(frame: bytes) -> range:
    """The addresses of a bytes object's bytes."""
    start = id(frame) + sys.getsizeof(b"") - 1
    assert pa.py_buffer(frame).address == start
    return range(start, start + len(frame))


def values_of(array: Array) -> list[bytes | None]:
    """A column's values as bytes."""
    return [None if value is None else str(value).encode() for value in array.to_pylist()]


@given(samples.frames())
def test_no_column_is_copied(encoded: bytes) -> None:
    block = Block.of(encoded)
    arrays = block_arrays(block)
    memory = memory_of(block.frame)
    for name, array in arrays.items():
        buffers = array.buffers()
        assert len(buffers) == (2 if name == "ts" else 3)
        assert (buffers[0] is not None) == (array.null_count > 0)
        for buffer in filter(None, buffers):
            assert buffer.address in memory
            assert buffer.address + buffer.size <= memory.stop
            assert buffer.address % 8 == 0


@given(samples.frames())
def test_columns_hold_what_the_block_says(encoded: bytes) -> None:
    block = Block.of(encoded)
    arrays = block_arrays(block)
    asked = {"tag": block.tags, "node": block.nodes, "meta": block.metas, "data": block.data}
    for name, ask in asked.items():
        expected = ask(0, block.count)
        assert (name in arrays) == (expected is not None)
        if expected is not None:
            assert values_of(arrays[name]) == expected
            assert arrays[name].null_count == list(expected).count(None)
            arrays[name].validate(full=True)  # type: ignore[attr-defined]
    if "ts" in arrays:
        assert arrays["ts"].cast(pa.int64()).to_pylist() == [record.ts for record in samples.records(block)]  # type: ignore[attr-defined]
    else:
        assert block.times(0, block.count) == block.ts


@given(samples.frames())
def test_a_batch_has_every_column_of_the_schema(encoded: bytes) -> None:
    block = Block.of(encoded)
    batch = block_batch(block)
    batch.validate(full=True)  # type: ignore[attr-defined]
    assert batch.num_rows == block.count
    columns = [batch.column(number) for number in range(6)]
    shown = [
        columns[0].to_pylist(),
        columns[1].cast(pa.int64()).to_pylist(),  # type: ignore[attr-defined]
        *(values_of(columns[number]) for number in (3, 2, 4, 5)),
    ]
    assert list(zip(*shown, strict=True)) == samples.records(block)


def test_the_schema_is_the_contracts() -> None:
    """http-v0 22.1 and design 2b name the same six columns."""
    assert str(record_schema()).split("\n") == [
        "seq: uint64 not null",
        "ts: timestamp[ms, tz=UTC] not null",
        "node: string",
        "tag: string",
        "meta: string",
        "data: string not null",
    ]


def test_a_frame_lives_as_long_as_an_array_over_it() -> None:
    def column() -> Array:
        rows = samples.make_rows([b'"%d"' % row for row in range(1000)])
        return block_arrays(Block.of(encode_block(rows, topic_id=1, first_seq=1, ts=1)))["data"]

    kept = [column() for _ in range(20)]
    assert all(values_of(array)[999] == b'"999"' for array in kept)


def code_of(script: str) -> int:
    """How a script ends in an interpreter of its own."""
    return subprocess.run(
        [sys.executable, "-c", script], check=False, env={"PYTHONPATH": ":".join(sys.path)}
    ).returncode


def test_pyarrow_is_not_imported_before_it_is_used() -> None:
    assert (
        code_of(
            "import sys\nimport driftq.storage.segments.cold_file, driftq.storage.blocks.block_arrow\n"
            "sys.exit('pyarrow' in sys.modules)"
        )
        == 0
    )


ALL_USES = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            sys.exit(9)

sys.meta_path.insert(0, Refused())
from driftq.storage.blocks.block_arrow import block_batch, joined, picked, stream_pieces
from driftq.codec.arrow_columns import read_texts
from driftq.storage.blocks.block import Block, encode_block
from driftq.storage.segments.cold_file import encode_parquet
from driftq.storage.segments.tag_sort import index_blocks
from tests.unit.storage.samples import make_rows

rows = make_rows([b"1", b"2", b"3"], tag=[b"a", None, b"b"], batch_node=b"n")
block = Block.of(encode_block(rows, topic_id=1, first_seq=1, ts=1))
batch = picked(block_batch(block), [0, 2])
assert index_blocks([block], 1).first == b"a"
encode_parquet([block], topic_id=1)
assert len(stream_pieces([joined([batch, batch])], {"head_seq": "3"})) == 3
texts = batch.select(["tag", "data"])
body = texts.schema.serialize().to_pybytes() + texts.serialize().to_pybytes()
assert read_texts(body, {"tag", "data"}, 10)[1] == 2
"""


def test_nothing_that_a_server_does_with_arrow_imports_pandas() -> None:
    assert code_of(ALL_USES) == 0
