"""The Python client of a DriftQ server: `Client` blocks, `AsyncClient` awaits, and both do the same.

    with Client() as client:
        jobs = client.topic("jobs")
        jobs.append({"hello": "world"})
        for item in jobs.read():
            print(item)

Every operation is a plan without I/O (`client.plan`) that a driver performs (`client.drivers`).
"""

from driftq.client.additions import Part
from driftq.client.broker import AsyncBroker, Begun, Broker, NewMessage, RedriveFilter, SeekTo
from driftq.client.client import AsyncClient, Client, WatchEvent
from driftq.client.consume import Delivery
from driftq.client.drivers import AsyncStream, Stream
from driftq.client.errors import (
    ApiError,
    BadRequestError,
    ClientError,
    ConflictError,
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
from driftq.client.leases import DeadLetter, Retry
from driftq.client.messages import StoredMessage
from driftq.client.plan import Response
from driftq.client.records import NewRecord
from driftq.client.retry import Retries
from driftq.client.topics import AsyncTopic, Topic
from driftq.client.watch import CaughtUp, Start, TopicGone
from driftq.client.worker import AsyncWorker, Worker, WorkerStats
from driftq.model.answers import Job, Record
from driftq.model.envelope import Envelope, RetryPolicy
from driftq.model.tombstone import Tombstone
from driftq.model.topic import TopicConfig

__all__ = [
    "ApiError",
    "AsyncBroker",
    "AsyncClient",
    "AsyncStream",
    "AsyncTopic",
    "AsyncWorker",
    "BadRequestError",
    "Begun",
    "Broker",
    "CaughtUp",
    "Client",
    "ClientError",
    "ConflictError",
    "DeadLetter",
    "Delivery",
    "Envelope",
    "ForbiddenError",
    "Job",
    "LeaseLostError",
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
    "TransportError",
    "UnauthorizedError",
    "UnavailableError",
    "WatchEvent",
    "Worker",
    "WorkerStats",
]
