"""The Python client of a DriftQ server. `Client` blocks, `AsyncClient` is for asyncio; both have the same methods.

    with Client() as client:
        jobs = client.topic("jobs")
        jobs.append({"hello": "world"})
        for item in jobs.read():
            print(item)

Every operation is a plan without I/O (`client/transport/plan`) that a driver performs (`client/transport/drivers`).
"""

from driftq.client.broker import AsyncBroker, Broker, Nack, NewMessage, RedriveFilter, SeekTo
from driftq.client.client import AsyncClient, Client, WatchEvent
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
from driftq.client.idempotency import AsyncIdempotency, Begun, Idempotency, Key
from driftq.client.messages import Delivery, StoredMessage
from driftq.client.producer.batch_buffer import Appended, AppendedLines, AsyncAppended, AsyncAppendedLines
from driftq.client.producer.producers import AsyncMessageProducer, AsyncTopicProducer, MessageProducer, TopicProducer
from driftq.client.topics.additions import Part
from driftq.client.topics.topic import AsyncTopic, Topic
from driftq.client.topics.watch import CaughtUp, Start, TopicGone
from driftq.client.transport.drivers import AsyncStream, Stream
from driftq.client.transport.new_records import NewRecord
from driftq.client.transport.plan import Response
from driftq.client.transport.retry import Retries
from driftq.client.workers.held_work import DeadLetter, Retry
from driftq.client.workers.item_handling import WorkerStats
from driftq.client.workers.threaded_worker import Worker
from driftq.client.workers.worker import AsyncWorker
from driftq.model.message import Envelope, RetryPolicy
from driftq.model.tombstone import Tombstone
from driftq.model.topic_config import TopicConfig
from driftq.model.v0_answers import Job, Record

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
