"""Every error that reaches a caller, as one tree. Codes are stable; status codes are the HTTP layer's business.

    DriftQError
    ├── InvalidRequestError            invalid_request
    │   ├── BatchTooLargeError         batch_too_large
    │   └── RecordTooLargeError        record_too_large
    ├── UnauthorizedError              unauthorized
    ├── ForbiddenError                 forbidden
    ├── TopicNotFoundError             topic_not_found
    ├── RouterNotFoundError            router_not_found
    ├── NotFoundError                  not_found           any other thing that is not there
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
    ├── PreconditionError              failed_precondition state that a call of the broker API does not fit
    │   └── NotOwnerError              failed_precondition the last delivery went to somebody else
    ├── ThrottledError                 throttled
    │   └── OverloadedError            throttled           a partition of the broker API is full
    ├── NotReadyError                  not_ready
    ├── ShuttingDownError              shutting_down
    ├── WalStoppedError                wal_stopped         what readiness answers; reads still work
    ├── SegmentUnavailableError        segment_unavailable records that cannot be read now; they are not lost
    │   └── ColdUnavailableError       cold_unavailable    the same, in the cold tier
    ├── InternalError                  internal            a commit that failed; the message says why
    │   ├── ShardStoppedError          internal            a failed sync or apply; until a restart
    │   ├── ShardReadOnlyError         internal            the next WAL file cannot be made
    │   └── DiskFullError              disk_full           no space on the disk, or in a quota; try later
    └── StartError                     start_refused       the data directory cannot be opened
        ├── DataDirLockedError         start_refused
        ├── NewerFormatError           start_refused       written by a newer version
        └── UnrecoverableError         start_refused       no usable checkpoint and no WAL from its start

An assertion is for our bugs, a `DriftQError` for the world. Torn tail, damage and a newer format are three different
verdicts (`storage/wal/wal_reader`); only the last one stops a start.
"""

from collections.abc import Mapping
from typing import ClassVar


class DriftQError(Exception):
    """The base: a stable code, a sentence for people, and facts for programs."""

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
    """The request is wrong whatever the state of the server."""

    code = "invalid_request"


class BatchTooLargeError(InvalidRequestError):
    """More records, or seqs, than one call may carry."""

    code = "batch_too_large"


class RecordTooLargeError(InvalidRequestError):
    """One record over its limit, or one write over the whole cap of a rejecting topic."""

    code = "record_too_large"


class TopicNotFoundError(DriftQError):
    """No such topic, and this call does not create one."""

    code = "topic_not_found"

    def __init__(self, topic: str) -> None:
        super().__init__(f"there is no topic {topic!r}", detail={"topic": topic})


class RouterNotFoundError(DriftQError):
    """No such router."""

    code = "router_not_found"

    def __init__(self, router: str) -> None:
        super().__init__(f"there is no router {router!r}", detail={"router": router})


class NotFoundError(DriftQError):
    """No such path, session, cursor or writer."""

    code = "not_found"


class NotAcceptableError(DriftQError):
    """The caller does not take what this answers with."""

    code = "not_acceptable"


class UnauthorizedError(DriftQError):
    """Who is asking is not known."""

    code = "unauthorized"


class ForbiddenError(DriftQError):
    """Who is asking is known and may not."""

    code = "forbidden"


class TopicExistsIncompatibleError(DriftQError):
    """The topic exists and cannot become what was asked for."""

    code = "topic_exists_incompatible"


class TopicNotEmptyError(DriftQError):
    """The topic was to be deleted only if empty."""

    code = "topic_not_empty"


class RouterCycleError(DriftQError):
    """A router that would let records come back to where they were."""

    code = "router_cycle"


class NotAQueueError(DriftQError):
    """The topic is a log, and this is for queues."""

    code = "not_a_queue"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} is not a queue", detail={"topic": topic})


class ReadOnlyError(DriftQError):
    """The topic belongs to the other dialect and is only read through this one."""

    code = "read_only"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} can only be read here", detail={"topic": topic})


class StageIncompleteError(DriftQError):
    """A commit names parts that are not there."""

    code = "stage_incomplete"


class EpochMismatchError(DriftQError):
    """The topic was deleted and made again since."""

    code = "epoch_mismatch"


class PayloadTooLargeError(DriftQError):
    """The body is longer than it may be."""

    code = "payload_too_large"


class UnsupportedMediaTypeError(DriftQError):
    """The body is of a type, or in an encoding, that this does not take."""

    code = "unsupported_media_type"


class TopicFullError(DriftQError):
    """A topic that rejects has no room now."""

    code = "topic_full"


class ThrottledError(DriftQError):
    """A cap or a full queue; the same call may work later."""

    code = "throttled"


class OverloadedError(ThrottledError):
    """A partition has as many open messages, or bytes of them, as it may; `limit` says which."""

    def __init__(self, limit: str, retry_after_ms: int) -> None:
        super().__init__(f"producer overload: {limit}", detail={"limit": limit}, retry_after_ms=retry_after_ms)
        self.limit = limit


class PreconditionError(DriftQError):
    """The state is not one in which a call of the broker API makes sense."""

    code = "failed_precondition"


class NotOwnerError(PreconditionError):
    """The last delivery of a message went to somebody else."""

    def __init__(self) -> None:
        super().__init__("not owner")


class NotReadyError(DriftQError):
    """The log is still being read."""

    code = "not_ready"


class ShuttingDownError(DriftQError):
    """The server is draining."""

    code = "shutting_down"


class WalStoppedError(DriftQError):
    """The log takes no more writes until the server restarts. Only readiness answers with this; reads still work."""

    code = "wal_stopped"


class SegmentUnavailableError(DriftQError):
    """A segment file cannot be read now. Nothing is lost and nothing has changed; the same call may work later."""

    code = "segment_unavailable"


class ColdUnavailableError(SegmentUnavailableError):
    """A segment file of the cold tier cannot be read now."""

    code = "cold_unavailable"


class InternalError(DriftQError):
    """A commit failed: nothing of it is shown to anybody."""

    code = "internal"


class ShardStoppedError(InternalError):
    """A sync failed, and nobody can say what is on disk; or memory is behind the log. Only a restart ends it."""


class ShardReadOnlyError(InternalError):
    """The next WAL file cannot be made: reads go on, writes work again as soon as it can."""


class DiskFullError(InternalError):
    """The disk, or a quota, has no space left for this write: nothing of it is kept, and reads go on."""

    code = "disk_full"

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after_ms=1000)


class StartError(DriftQError):
    """The data directory cannot be opened; nothing was changed."""

    code = "start_refused"


class DataDirLockedError(StartError):
    """Another server has it open."""


class NewerFormatError(StartError):
    """A file was written by a newer version."""


class UnrecoverableError(StartError):
    """There is neither a usable checkpoint nor a WAL from its start."""
