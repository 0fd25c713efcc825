"""The Python client of a DriftQ server: `Client` blocks, `AsyncClient` awaits, and both do the same.

    with Client() as client:
        jobs = client.topic("jobs")
        jobs.append({"hello": "world"})
        for item in jobs.read():
            print(item)

Every operation is a plan without I/O (`client.plan`) that a driver performs (`client.drivers`).
"""

from driftq.client.additions import Part
from driftq.client.broker import AsyncBroker, Broker, Nack, NewMessage, RedriveFilter, SeekTo
from driftq.client.buffer import Appended, AppendedLines, AsyncAppended, AsyncAppendedLines
from driftq.client.client import AsyncClient, Client, WatchEvent
from driftq.client.consume import Delivery
from driftq.client.drivers import AsyncStream, Stream
from driftq.client.errors import (
    ApiError,
    BadRequestError,
    ClientError,
    ClosedError,
    ConfigDiffersError,
    ConflictError,
    DiskFullError,
    ForbiddenError,
    LeaseLostError,
    NotFoundError,
    ProtocolError,
    ServerError,
    ThrottledError,
    TopicFullError,
    TransportError,
    UnauthorizedError,
    UnavailableError,
)
from driftq.client.handling import WorkerStats
from driftq.client.idempotency import AsyncIdempotency, Begun, Idempotency, Key
from driftq.client.leases import DeadLetter, Retry
from driftq.client.messages import StoredMessage
from driftq.client.plan import Response
from driftq.client.producers import AsyncMessageProducer, AsyncTopicProducer, MessageProducer, TopicProducer
from driftq.client.records import NewRecord
from driftq.client.retry import Retries
from driftq.client.threaded import Worker
from driftq.client.topics import AsyncTopic, Topic
from driftq.client.watch import CaughtUp, Start, TopicGone
from driftq.client.worker import AsyncWorker
from driftq.model.answers import Job, Record
from driftq.model.envelope import Envelope, RetryPolicy
from driftq.model.tombstone import Tombstone
from driftq.model.topic import TopicConfig

__all__ = [
    "ApiError",
    "Appended",
    "AppendedLines",
    "AsyncAppended",
    "AsyncAppendedLines",
    "AsyncBroker",
    "AsyncClient",
    "AsyncIdempotency",
    "AsyncMessageProducer",
    "AsyncStream",
    "AsyncTopic",
    "AsyncTopicProducer",
    "AsyncWorker",
    "BadRequestError",
    "Begun",
    "Broker",
    "CaughtUp",
    "Client",
    "ClientError",
    "ClosedError",
    "ConfigDiffersError",
    "ConflictError",
    "DeadLetter",
    "Delivery",
    "DiskFullError",
    "Envelope",
    "ForbiddenError",
    "Idempotency",
    "Job",
    "Key",
    "LeaseLostError",
    "MessageProducer",
    "Nack",
    "NewMessage",
    "NewRecord",
    "NotFoundError",
    "Part",
    "ProtocolError",
    "Record",
    "RedriveFilter",
    "Response",
    "Retries",
    "Retry",
    "RetryPolicy",
    "SeekTo",
    "ServerError",
    "Start",
    "StoredMessage",
    "Stream",
    "ThrottledError",
    "Tombstone",
    "Topic",
    "TopicConfig",
    "TopicFullError",
    "TopicGone",
    "TopicProducer",
    "TransportError",
    "UnauthorizedError",
    "UnavailableError",
    "WatchEvent",
    "Worker",
    "WorkerStats",
]
