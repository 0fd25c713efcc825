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
from driftq.http.v0 import backups, cursors, queues, routers, staging
from driftq.http.v0.bodies import ARROW
from driftq.http.v0.records import record_bodies as wire
from driftq.http.v0.streams import watch_bodies as watch_wire
from driftq.model import v0_additions as additions
from driftq.model import v0_answers as answers
from driftq.model.topic_config import TopicConfig, TopicPatch

_TOPIC = "/v0/topics/:topic"
_ROUTER = "/v0/routers/:router"
_CURSOR = f"{_TOPIC}/cursors/:name"
_EVENTS = {"text/event-stream": "One event a frame."}
_ARROW = {ARROW.decode(): "One Arrow IPC stream."}
_PAGE = {"page_size": int, "cursor": str}


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", "/v0/health"): Operation(summary="Is the process alive?", reply=answers.Health, open=True, always=True),
    ("GET", "/healthz"): Operation(summary="The same.", reply=answers.Health, open=True, always=True),
    ("GET", "/v0/ready"): Operation(summary="Does it take requests?", reply=answers.Readiness, open=True),
    ("GET", "/readyz"): Operation(summary="The same.", reply=answers.Readiness, open=True),
    ("GET", "/v0/metrics"): Operation(
        summary="What the server counts.",
        reply=dict[str, Any],
        other_media={"text/plain": "Prometheus text, version 0.0.4."},
        always=True,
    ),
    ("GET", "/openapi.json"): Operation(summary="This document.", reply=dict[str, Any], open=True, always=True),
    ("PUT", _TOPIC): Operation(
        summary="Create a topic, or replace its config; with `replace=false`, leave one that is there as it is.",
        body=TopicConfig,
        body_required=False,
        reply=answers.TopicPut,
        statuses=(200, 201),
        errors=(409, 507),
        query={"replace": bool},
    ),
    ("PATCH", _TOPIC): Operation(
        summary="Change some settings of a topic: an absent field stays, `null` is its default.",
        body=TopicPatch,
        reply=answers.TopicPut,
        errors=(404, 409, 507),
    ),
    ("GET", _TOPIC): Operation(
        summary="How a topic stands.",
        reply=answers.TopicState,
        errors=(404,),
        query={"touch": bool, "wait_synced": int, "wait_ms": int},
    ),
    ("GET", "/v0/topics"): Operation(
        summary="Topics, by name.",
        reply=answers.TopicList,
        errors=(400,),
        query={"prefix": str, "touch": bool, "v1": bool, **_PAGE},
    ),
    ("DELETE", _TOPIC): Operation(
        summary="Delete a topic and what names it.", reply=answers.TopicDeleted, errors=(409,), query={"if_empty": bool}
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
        summary="Read the records behind a cursor.",
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
        summary="Create a router, or change it.",
        body=routers.RouterBody,
        reply=answers.RouterPut,
        statuses=(200, 201),
        errors=(404, 409, 507),
    ),
    ("GET", _ROUTER): Operation(summary="How a router stands.", reply=answers.RouterState, errors=(404,)),
    ("DELETE", _ROUTER): Operation(summary="Delete a router.", reply=answers.RouterDeleted),
    ("GET", "/v0/routers"): Operation(
        summary="Routers, by name.",
        reply=answers.RouterList,
        errors=(400,),
        query={"prefix": str, "source": str, "dest": str, **_PAGE},
    ),
    ("POST", "/v0/watch"): Operation(
        summary="Begin a watch over topics.",
        body=watch_wire.WatchBody,
        reply=answers.Watching,
        errors=(404,),
        query={"lenient": bool},
    ),
    ("GET", "/v0/watch/:wid"): Operation(
        summary="The stream of a watch.",
        errors=(404, 406),
        query={"cursor": str, "token": str},
        headers={"Last-Event-ID": str},
        other_media=_EVENTS,
    ),
    ("GET", "/v0/ws"): Operation(summary="A WebSocket of commands.", statuses=(101,), errors=(400,)),
    ("POST", f"{_TOPIC}/claim"): Operation(
        summary="Take jobs under a lease.", body=queues.ClaimBody, reply=answers.Claimed, errors=(404, 409)
    ),
    ("POST", f"{_TOPIC}/leave"): Operation(
        summary="End the claims of a worker that wait.",
        body=queues.QueueLeaveBody,
        reply=answers.LeaveAnswer,
        errors=(404, 409),
    ),
    ("POST", f"{_TOPIC}/ack"): Operation(
        summary="Jobs that are done.", body=queues.SettleBody, reply=answers.AckAnswer, errors=(404, 409)
    ),
    ("POST", f"{_TOPIC}/nack"): Operation(
        summary="Jobs that go back.", body=queues.NackBody, reply=answers.NackAnswer, errors=(404, 409)
    ),
    ("POST", f"{_TOPIC}/extend"): Operation(
        summary="More time for jobs.", body=queues.ExtendBody, reply=answers.ExtendAnswer, errors=(404, 409)
    ),
    ("GET", f"{_TOPIC}/work"): Operation(
        summary="Jobs, pushed.",
        errors=(400, 404, 406, 409),
        query={"node": str, "max": int, "lease_ms": int, "token": str},
        required_query=frozenset({"node"}),
        other_media=_EVENTS,
    ),
    ("GET", f"{_TOPIC}/segments"): Operation(
        summary="The sealed segments, for readers in place.", reply=additions.SegmentManifest, errors=(404,)
    ),
    ("POST", "/v0/backups"): Operation(
        summary="Begin a backup of every topic, into a directory on the server's machine.",
        body=backups.BackupBegin,
        body_required=False,
        reply=additions.BackupState,
        statuses=(202,),
        errors=(403, 429),
    ),
    ("GET", "/v0/backups"): Operation(
        summary="The backups of this run of the server.", reply=additions.BackupList, errors=(403,)
    ),
    ("GET", "/v0/backups/:backup"): Operation(
        summary="How far a backup is.", reply=additions.BackupState, errors=(403, 404)
    ),
    ("GET", f"{_TOPIC}/cursors"): Operation(
        summary="Named cursors, by name.", reply=additions.CursorList, errors=(400, 404), query={"prefix": str, **_PAGE}
    ),
    ("PUT", _CURSOR): Operation(
        summary="Move a named cursor.", body=cursors.CursorPut, reply=additions.CursorMoved, errors=(404, 409)
    ),
    ("GET", _CURSOR): Operation(summary="A named cursor.", reply=additions.CursorState, errors=(404,)),
    ("DELETE", _CURSOR): Operation(summary="Forget a named cursor.", reply=additions.CursorDeleted, errors=(404, 409)),
    ("POST", f"{_TOPIC}/stage"): Operation(
        summary="Lay a part of a batch aside.",
        body=WriteBody,
        reply=additions.PartStaged,
        errors=(404, 409, 507),
        query={"writer": str, "batch": int, "part": int, "attempt": int, "chunk": int},
        required_query=frozenset({"writer", "batch", "part", "attempt"}),
    ),
    ("POST", f"{_TOPIC}/commit"): Operation(
        summary="Publish the parts of a batch, all at once.",
        body=staging.CommitRequest,
        reply=additions.BatchCommitted,
        errors=(404, 409, 422, 507),
    ),
    ("GET", f"{_TOPIC}/writers/:writer"): Operation(
        summary="The last batch of a writer.", reply=additions.StagedWriterState, errors=(404,)
    ),
    ("DELETE", f"{_TOPIC}/stage/:writer"): Operation(
        summary="Drop the parts of a writer.", reply=additions.PartsDropped, errors=(404, 409)
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
