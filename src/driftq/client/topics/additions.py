"""Segments, named cursors and staged writes (http-v0 §22.2, §22.4, §22.5)."""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from driftq.client.transport.calls import JSON, decoded, path_of, query_of
from driftq.client.transport.new_records import NewRecord, write_body
from driftq.client.transport.operations import Operations, flow, operation
from driftq.client.transport.plan import Flow, Plan, Request
from driftq.client.transport.retry import Repeat
from driftq.model.v0_additions import (
    BatchCommitted,
    CursorDeleted,
    CursorList,
    CursorMoved,
    CursorRow,
    CursorState,
    PartsDropped,
    PartStaged,
    SegmentManifest,
    StagedWriterState,
)

ARROW = "application/vnd.apache.arrow.stream"


class Part(Struct, frozen=True):
    """A staged part of a batch: its number, the attempt to publish, and the number of chunks of that attempt."""

    part: int
    attempt: int = 0
    chunks: int = 1


class Additions(Operations):
    """Calls for segments, named cursors and staged writes of a topic."""

    name: str
    _path: str

    @operation
    def segments(self) -> Plan[SegmentManifest]:
        """Return which files hold which seqs, for programs that read the files themselves."""
        return self._calls.json("GET", f"{self._path}/segments", SegmentManifest)

    @flow
    def cursors(self, *, prefix: str | None = None) -> Flow[CursorRow]:
        """Yield the named cursors of the topic, sorted by name."""
        path = f"{self._path}/cursors"
        return self._calls.pages(path, CursorList, lambda page: page.cursors, {"prefix": prefix})

    @operation
    def cursor(self, name: str) -> Plan[CursorState]:
        """Return the position of a named cursor."""
        return self._calls.json("GET", self._cursor_path(name), CursorState)

    @operation
    def set_cursor(
        self,
        name: str,
        seq: int,
        *,
        epoch: int | None = None,
        rewind: bool = False,
        meta: Mapping[str, str] | None = None,
    ) -> Plan[CursorMoved]:
        """Move a named cursor forward, or with `rewind` to any seq; create it if it does not exist."""
        body = {"seq": seq, "epoch": epoch, "rewind": rewind, "meta": meta}
        return self._calls.json("PUT", self._cursor_path(name), CursorMoved, body=body)

    @operation
    def delete_cursor(self, name: str) -> Plan[CursorDeleted]:
        """Delete a named cursor of the topic."""
        return self._calls.json("DELETE", self._cursor_path(name), CursorDeleted)

    def _cursor_path(self, name: str) -> str:
        return self._path + path_of("cursors", name)

    @operation
    def stage(
        self,
        records: Iterable[NewRecord | Mapping[str, Any]] | bytes,
        *,
        writer: str,
        batch: int,
        part: int,
        attempt: int = 0,
        chunk: int = 0,
    ) -> Plan[PartStaged]:
        """Stage a part of a batch: records, or an Arrow stream as bytes. Readers see it after `commit`."""
        query = query_of({"writer": writer, "batch": batch, "part": part, "attempt": attempt, "chunk": chunk})
        headers = {"content-type": ARROW} if isinstance(records, bytes) else JSON
        body = records if isinstance(records, bytes) else write_body(records)
        request = Request("POST", f"{self._path}/stage", query, headers, body)
        return decoded((yield from self._calls.response(request, Repeat.SAME)), PartStaged)

    @operation
    def commit(
        self,
        *,
        writer: str,
        batch: int,
        parts: Iterable[Part],
        epoch: int | None = None,
        return_seqs: bool = False,
    ) -> Plan[BatchCommitted]:
        """Publish the parts of a batch in the given order, in one step; a repeated call does not publish it again."""
        body = {"writer": writer, "batch": batch, "parts": list(parts), "epoch": epoch}
        query = {"return_seqs": return_seqs}
        return self._calls.json("POST", f"{self._path}/commit", BatchCommitted, query=query, body=body)

    @operation
    def writer(self, writer: str) -> Plan[StagedWriterState]:
        """Return the last committed batch of a writer."""
        return self._calls.json("GET", self._path + path_of("writers", writer), StagedWriterState)

    @operation
    def drop_staged(self, writer: str) -> Plan[PartsDropped]:
        """Delete the parts that a writer has staged and not committed."""
        return self._calls.json("DELETE", self._path + path_of("stage", writer), PartsDropped)
