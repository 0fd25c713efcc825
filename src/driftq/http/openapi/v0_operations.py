"""Lists every operation of the /v0 API for the OpenAPI document, and serves the document.

Request bodies are the structs that decode them, answers those of `model/v0_answers`.
"""

from typing import Any

from msgspec.json import encode

from driftq import __version__
from driftq.codec.write_body import WriteBody
from driftq.http.openapi.document import Operation, document
from driftq.http.openapi.v1_operations import OPERATIONS as BROKER_OPERATIONS
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v0 import backups, cursors, queues, routers, segments, staging
from driftq.http.v0.bodies import ARROW
from driftq.http.v0.records import many_reads
from driftq.http.v0.records import record_bodies as wire
from driftq.http.v0.streams import watch_bodies as watch_wire
from driftq.model import v0_additions as additions
from driftq.model import v0_answers as answers
from driftq.model.topic_config import TopicConfig, TopicPatch

_TOPIC = "/v0/topics/:topic"
_ROUTER = "/v0/routers/:router"
_CURSOR = f"{_TOPIC}/cursors/:name"
_EVENTS = {"text/event-stream": "One event per frame."}
_ARROW = {ARROW.decode(): "One Arrow IPC stream."}
_PAGE = {"page_size": int, "cursor": str}


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "/v0/health"): Operation(
        summary="Check that the process is alive.", reply=answers.Health, open=True, always=True
    ),
    ("GET", "/healthz"): Operation(
        summary="Check that the process is alive, like `/v0/health`.", reply=answers.Health, open=True, always=True
    ),
    ("GET", "/v0/ready"): Operation(
        summary="Check that the server accepts requests.", reply=answers.Readiness, open=True
    ),
    ("GET", "/readyz"): Operation(
        summary="Check that the server accepts requests, like `/v0/ready`.", reply=answers.Readiness, open=True
    ),
    ("GET", "/v0/metrics"): Operation(
        summary="Return the metrics of the server.",
        reply=dict[str, Any],
        other_media={"text/plain": "Prometheus text, version 0.0.4."},
        always=True,
    ),
    ("GET", "/openapi.json"): Operation(summary="Return this document.", reply=dict[str, Any], open=True, always=True),
    ("PUT", _TOPIC): Operation(
        summary="Create a topic, or replace its config; with `replace=false`, an existing topic is not changed.",
        body=TopicConfig,
        body_required=False,
        reply=answers.TopicPut,
        statuses=(200, 201),
        errors=(409, 507),
        query={"replace": bool},
    ),
    ("PATCH", _TOPIC): Operation(
        summary="Change some settings of a topic: an absent field is unchanged, `null` resets it to its default.",
        body=TopicPatch,
        reply=answers.TopicPut,
        errors=(404, 409, 507),
    ),
    ("GET", _TOPIC): Operation(
        summary="Show the state and config of a topic.",
        reply=answers.TopicState,
        errors=(404,),
        query={"touch": bool, "wait_synced": int, "wait_ms": int},
    ),
    ("GET", "/v0/topics"): Operation(
        summary="List topics by name.",
        reply=answers.TopicList,
        errors=(400,),
        query={"prefix": str, "touch": bool, "v1": bool, **_PAGE},
    ),
    ("DELETE", _TOPIC): Operation(
        summary="Delete a topic and everything that refers to it.",
        reply=answers.TopicDeleted,
        errors=(409,),
        query={"if_empty": bool},
    ),
    ("POST", _TOPIC): Operation(
        summary="Write records.",
        body=WriteBody,
        reply=answers.Written,
        statuses=(200, 201),
        errors=(404, 409, 422, 507),
        query={"return_seqs": bool},
        headers={"Idempotency-Key": str},
    ),
    ("POST", f"{_TOPIC}/diff"): Operation(
        summary="Read the records after a cursor.",
        body=wire.DiffBody,
        body_required=False,
        reply=answers.DiffPage,
        errors=(404,),
        other_media=_ARROW,
    ),
    ("POST", f"{_TOPIC}/delete"): Operation(
        summary="Delete records.", body=wire.DeleteBody, reply=answers.RecordsDeleted, errors=(404, 409)
    ),
    ("PUT", _ROUTER): Operation(
        summary="Create a router, or replace its settings.",
        body=routers.RouterBody,
        reply=answers.RouterPut,
        statuses=(200, 201),
        errors=(404, 409, 507),
    ),
    ("GET", _ROUTER): Operation(summary="Show the state of a router.", reply=answers.RouterState, errors=(404,)),
    ("DELETE", _ROUTER): Operation(summary="Delete a router.", reply=answers.RouterDeleted),
    ("GET", "/v0/routers"): Operation(
        summary="List routers by name.",
        reply=answers.RouterList,
        errors=(400,),
        query={"prefix": str, "source": str, "dest": str, **_PAGE},
    ),
    ("POST", "/v0/watch"): Operation(
        summary="Start a watch of topics.",
        body=watch_wire.WatchBody,
        reply=answers.Watching,
        errors=(404,),
        query={"lenient": bool},
    ),
    ("GET", "/v0/watch/:wid"): Operation(
        summary="Read the event stream of a watch.",
        errors=(404, 406),
        query={"cursor": str, "token": str},
        headers={"Last-Event-ID": str},
        other_media=_EVENTS,
    ),
    ("GET", "/v0/ws"): Operation(summary="Open a WebSocket for commands.", statuses=(101,), errors=(400,)),
    ("POST", f"{_TOPIC}/claim"): Operation(
        summary="Claim jobs under a lease.", body=queues.ClaimBody, reply=answers.Claimed, errors=(404, 409)
    ),
    ("POST", f"{_TOPIC}/leave"): Operation(
        summary="End the waiting claims of a worker.",
        body=queues.QueueLeaveBody,
        reply=answers.LeaveAnswer,
        errors=(404, 409),
    ),
    ("POST", f"{_TOPIC}/ack"): Operation(
        summary="Ack jobs: they are done.", body=queues.SettleBody, reply=answers.AckAnswer, errors=(404, 409)
    ),
    ("POST", f"{_TOPIC}/nack"): Operation(
        summary="Give jobs back, to be delivered again.",
        body=queues.NackBody,
        reply=answers.NackAnswer,
        errors=(404, 409),
    ),
    ("POST", f"{_TOPIC}/extend"): Operation(
        summary="Extend the leases of jobs.", body=queues.ExtendBody, reply=answers.ExtendAnswer, errors=(404, 409)
    ),
    ("GET", f"{_TOPIC}/work"): Operation(
        summary="Open a stream on which jobs are pushed to a worker.",
        errors=(400, 404, 406, 409),
        query={"node": str, "max": int, "lease_ms": int, "token": str},
        required_query=frozenset({"node"}),
        other_media=_EVENTS,
    ),
    ("GET", f"{_TOPIC}/segments"): Operation(
        summary="List the sealed segments, for readers that open the files themselves.",
        reply=additions.SegmentManifest,
        errors=(404,),
    ),
    ("POST", "/v0/reads"): Operation(
        summary="Read at most 100 topics: one Arrow stream per read, one after another.",
        body=many_reads.ReadsBody,
        reply=None,
        other_media=_ARROW,
        errors=(404,),
    ),
    ("POST", "/v0/segments"): Operation(
        summary="List the sealed segments of many topics: those named, at most 1000, or a page of all.",
        body=segments.ManifestsBody,
        body_required=False,
        reply=additions.SegmentManifests,
    ),
    ("POST", "/v0/backups"): Operation(
        summary="Start a backup of all topics into a directory on the server's machine.",
        body=backups.BackupBegin,
        body_required=False,
        reply=additions.BackupState,
        statuses=(202,),
        errors=(403, 429),
    ),
    ("GET", "/v0/backups"): Operation(
        summary="List the backups since the server started.", reply=additions.BackupList, errors=(403,)
    ),
    ("GET", "/v0/backups/:backup"): Operation(
        summary="Show the progress of a backup.", reply=additions.BackupState, errors=(403, 404)
    ),
    ("GET", f"{_TOPIC}/cursors"): Operation(
        summary="List named cursors by name.",
        reply=additions.CursorList,
        errors=(400, 404),
        query={"prefix": str, **_PAGE},
    ),
    ("PUT", _CURSOR): Operation(
        summary="Move a named cursor.", body=cursors.CursorPut, reply=additions.CursorMoved, errors=(404, 409)
    ),
    ("GET", _CURSOR): Operation(summary="Show a named cursor.", reply=additions.CursorState, errors=(404,)),
    ("DELETE", _CURSOR): Operation(summary="Delete a named cursor.", reply=additions.CursorDeleted, errors=(404, 409)),
    ("POST", f"{_TOPIC}/stage"): Operation(
        summary="Stage a part of a batch; it is not visible before the commit.",
        body=WriteBody,
        reply=additions.PartStaged,
        errors=(404, 409, 507),
        query={"writer": str, "batch": int, "part": int, "attempt": int, "chunk": int, "create": bool},
        required_query=frozenset({"writer", "batch", "part", "attempt"}),
    ),
    ("POST", f"{_TOPIC}/commit"): Operation(
        summary="Publish the parts of a batch, all at once.",
        body=staging.CommitRequest,
        reply=additions.BatchCommitted,
        errors=(404, 409, 422, 507),
    ),
    ("GET", f"{_TOPIC}/writers/:writer"): Operation(
        summary="Show the last batch of a writer.", reply=additions.StagedWriterState, errors=(404,)
    ),
    ("DELETE", f"{_TOPIC}/stage/:writer"): Operation(
        summary="Delete the staged parts of a writer.", reply=additions.PartsDropped, errors=(404, 409)
    ),
}


class OpenApi:
    """Serves the document, which is built at the first request."""

    def __init__(self) -> None:
        self._body: bytes | None = None

    def routes(self) -> list[Route]:
        """Return the route of this endpoint."""
        return [Route("GET", "/openapi.json", self.get, probe=True)]

    def get(self, _: Request) -> Reply:
        """Return the whole document as JSON."""
        if self._body is None:
            self._body = encode(document(OPERATIONS | BROKER_OPERATIONS, title="DriftQ", version=__version__))
        return Reply(200, self._body)
