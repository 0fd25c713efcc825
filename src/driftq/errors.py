"""All errors that reach a caller, as one tree. Codes are stable; the HTTP layer chooses status codes.

    DriftQError
    ├── InvalidRequestError            invalid_request
    │   ├── BatchTooLargeError         batch_too_large
    │   └── RecordTooLargeError        record_too_large
    ├── UnauthorizedError              unauthorized
    ├── ForbiddenError                 forbidden
    ├── TopicNotFoundError             topic_not_found
    ├── RouterNotFoundError            router_not_found
    ├── NotFoundError                  not_found           any other thing that does not exist
    ├── NotAcceptableError             not_acceptable
    ├── TopicExistsIncompatibleError   topic_exists_incompatible
    ├── TopicNotEmptyError             topic_not_empty
    ├── RouterCycleError               router_cycle
    ├── NotAQueueError                 not_a_queue
    ├── ReadOnlyError                  read_only
    ├── StageIncompleteError           stage_incomplete
    ├── EpochMismatchError             epoch_mismatch
    ├── PayloadTooLargeError           payload_too_large
    ├── UnsupportedMediaTypeError      unsupported_media_type
    ├── TopicFullError                 topic_full
    ├── PreconditionError              failed_precondition a call of the broker API that does not fit the state
    │   └── NotOwnerError              failed_precondition the last delivery went to another owner
    ├── ThrottledError                 throttled
    │   └── OverloadedError            throttled           a partition of the broker API is full
    ├── NotReadyError                  not_ready
    ├── ShuttingDownError              shutting_down
    ├── WalStoppedError                wal_stopped         the answer of readiness; reads still work
    ├── SegmentUnavailableError        segment_unavailable records that cannot be read now; they are not lost
    │   └── ColdUnavailableError       cold_unavailable    the same, in the cold tier
    ├── InternalError                  internal            a commit that failed; the message has the reason
    │   ├── ShardStoppedError          internal            a failed sync or apply; until a restart
    │   ├── ShardReadOnlyError         internal            the next WAL file cannot be made
    │   └── DiskFullError              disk_full           no space on the disk, or in a quota; try later
    └── StartError                     start_refused       the data directory cannot be opened
        ├── DataDirLockedError         start_refused
        ├── NewerFormatError           start_refused       written by a newer version
        └── UnrecoverableError         start_refused       no usable checkpoint and no WAL from its start

An assertion is for our bugs, a `DriftQError` for everything else. A torn tail, damage and a newer format are three
different findings (`storage/wal/wal_reader`); only the last one stops a start.
"""

from collections.abc import Mapping
from typing import ClassVar


class DriftQError(Exception):
    """The base class: a stable code, a sentence for people, and facts for programs."""

    code: ClassVar[str] = "internal"

    def __init__(
        self,
        message: str,
        *,
        detail: Mapping[str, object] | None = None,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.retry_after_ms = retry_after_ms


class InvalidRequestError(DriftQError):
    """The request is wrong, whatever the state of the server."""

    code = "invalid_request"


class BatchTooLargeError(InvalidRequestError):
    """More records, or seqs, than one call may have."""

    code = "batch_too_large"


class RecordTooLargeError(InvalidRequestError):
    """One record above its limit, or one write above the whole cap of a topic that rejects."""

    code = "record_too_large"


class TopicNotFoundError(DriftQError):
    """The topic does not exist, and this call does not create it."""

    code = "topic_not_found"

    def __init__(self, topic: str) -> None:
        super().__init__(f"there is no topic {topic!r}", detail={"topic": topic})


class RouterNotFoundError(DriftQError):
    """The router does not exist."""

    code = "router_not_found"

    def __init__(self, router: str) -> None:
        super().__init__(f"there is no router {router!r}", detail={"router": router})


class NotFoundError(DriftQError):
    """The path, session, cursor or writer does not exist."""

    code = "not_found"


class NotAcceptableError(DriftQError):
    """The caller does not accept the content type of the answer."""

    code = "not_acceptable"


class UnauthorizedError(DriftQError):
    """The API key is missing or unknown."""

    code = "unauthorized"


class ForbiddenError(DriftQError):
    """The API key is known but does not allow this call."""

    code = "forbidden"


class TopicExistsIncompatibleError(DriftQError):
    """The topic exists and cannot be changed to the requested config."""

    code = "topic_exists_incompatible"


class TopicNotEmptyError(DriftQError):
    """The topic has records, and the delete was only for an empty one."""

    code = "topic_not_empty"


class RouterCycleError(DriftQError):
    """The router would copy records back to a topic that they came from."""

    code = "router_cycle"


class NotAQueueError(DriftQError):
    """The topic is a log, and this call is for queues."""

    code = "not_a_queue"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} is not a queue", detail={"topic": topic})


class ReadOnlyError(DriftQError):
    """The topic belongs to the other API and can only be read through this one."""

    code = "read_only"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} is read-only in this API", detail={"topic": topic})


class StageIncompleteError(DriftQError):
    """A commit names parts that are not staged."""

    code = "stage_incomplete"


class EpochMismatchError(DriftQError):
    """The topic was deleted and created again since."""

    code = "epoch_mismatch"


class PayloadTooLargeError(DriftQError):
    """The body is longer than the limit."""

    code = "payload_too_large"


class UnsupportedMediaTypeError(DriftQError):
    """The body has a content type or encoding that this call does not accept."""

    code = "unsupported_media_type"


class TopicFullError(DriftQError):
    """A topic that rejects has no room now."""

    code = "topic_full"


class ThrottledError(DriftQError):
    """A limit is reached or a queue is full; the same call may work later."""

    code = "throttled"


class OverloadedError(ThrottledError):
    """A partition has the maximum of open messages or of their bytes; `limit` names which."""

    def __init__(self, limit: str, retry_after_ms: int) -> None:
        super().__init__(f"producer overload: {limit}", detail={"limit": limit}, retry_after_ms=retry_after_ms)
        self.limit = limit


class PreconditionError(DriftQError):
    """The current state does not allow this call of the broker API."""

    code = "failed_precondition"


class NotOwnerError(PreconditionError):
    """The last delivery of a message went to another owner."""

    def __init__(self) -> None:
        super().__init__("not owner")


class NotReadyError(DriftQError):
    """The server is starting: it still reads the log."""

    code = "not_ready"


class ShuttingDownError(DriftQError):
    """The server is stopping and accepts no new requests."""

    code = "shutting_down"


class WalStoppedError(DriftQError):
    """The log accepts no more writes until the server restarts. Only readiness answers with this; reads still work."""

    code = "wal_stopped"


class SegmentUnavailableError(DriftQError):
    """A segment file cannot be read now. Nothing is lost and nothing has changed; the same call may work later."""

    code = "segment_unavailable"


class ColdUnavailableError(SegmentUnavailableError):
    """A segment file of the cold tier cannot be read now."""

    code = "cold_unavailable"


class InternalError(DriftQError):
    """A commit failed: no part of it is visible."""

    code = "internal"


class ShardStoppedError(InternalError):
    """A sync failed, and what is on disk is not known; or memory lags behind the log. Only a restart ends it."""


class ShardReadOnlyError(InternalError):
    """The next WAL file cannot be made: reads work, and writes work again as soon as it can."""


class DiskFullError(InternalError):
    """The disk, or a quota, has no space left for this write: no part of it is kept, and reads work."""

    code = "disk_full"

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after_ms=1000)


class StartError(DriftQError):
    """The data directory cannot be opened; nothing was changed."""

    code = "start_refused"


class DataDirLockedError(StartError):
    """Another server has the data directory open."""


class NewerFormatError(StartError):
    """A file was written by a newer version."""


class UnrecoverableError(StartError):
    """There is neither a usable checkpoint nor a WAL from its start."""
