"""The answers of the additions to `/v0` (http-v0 §22): segments, named cursors, staged writes, backups."""

from msgspec import UNSET, Struct, UnsetType, field

from driftq.model.tombstone import Reason
from driftq.model.v0_answers import Listing, Performance


class HoleRow(Struct, omit_defaults=True):
    """A hole in the log. `at_most`: it is not known which of its seqs had a record."""

    first: int = field(name="from")
    last: int = field(name="to")
    reason: Reason
    at_most: bool = False


class SegmentRow(Struct):
    """One sealed segment. `bytes` is the size of its payload, deleted records included."""

    tier: str
    file: str
    first_seq: int
    last_seq: int
    count: int
    live: int
    bytes: int
    first_ts: int
    last_ts: int


class SegmentManifest(Struct):
    """The state of a topic, its sealed segments and its holes."""

    topic: str
    topic_id: int
    epoch: int
    head_seq: int
    earliest_seq: int
    evict_floor: int
    synced_seq: int | None
    holes: list[HoleRow]
    server_id: str
    hot_root: str
    cold_root: str | None
    segments: list[SegmentRow]
    performance: Performance


class ManifestRow(Struct, omit_defaults=True):
    """One topic in an answer about many topics: its state, sealed segments and holes."""

    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int
    evict_floor: int
    count: int
    bytes: int
    last_ts: int | None
    holes: list[HoleRow]
    segments: list[SegmentRow]
    reach_seq: int | UnsetType = UNSET


class SegmentManifests(Listing):
    """The manifests of many topics, sorted by name. Topics that do not exist are absent."""

    server_id: str
    hot_root: str
    cold_root: str | None
    topics: list[ManifestRow]


class CursorMoved(Struct):
    """The answer to a PUT of a cursor."""

    topic: str
    cursor: str
    seq: int
    epoch: int
    head_seq: int
    lag: int
    updated_ts: int
    moved: bool
    performance: Performance


class CursorRow(Struct):
    """One cursor in a list of cursors."""

    topic: str
    cursor: str
    seq: int
    epoch: int
    head_seq: int
    lag: int
    updated_ts: int
    meta: dict[str, str]


class CursorState(CursorRow):
    """The state of one cursor."""

    performance: Performance


class CursorList(Listing):
    """A page of the list of cursors."""

    cursors: list[CursorRow]


class CursorDeleted(Struct):
    """The answer to a DELETE of a cursor."""

    topic: str
    cursor: str
    deleted: bool
    performance: Performance


class PartStaged(Struct):
    """The answer to the upload of a part."""

    topic: str
    writer: str
    batch: int
    part: int
    attempt: int
    chunk: int
    records: int
    bytes: int
    expires_ts: int
    performance: Performance


class BatchCommitted(Struct):
    """The answer to a commit, like that to a write (§7). The seqs are null for a batch long before the last one."""

    topic: str
    first_seq: int | None
    last_seq: int | None
    head_seq: int
    count: int
    created: bool
    deduped: bool
    synced_seq: int | None
    performance: Performance
    seqs: list[int] | UnsetType | None = UNSET


class StagedWriterState(Struct):
    """The last batch that a writer has committed."""

    topic: str
    writer: str
    last_batch: int
    first_seq: int
    last_seq: int
    performance: Performance


class PartsDropped(Struct):
    """The answer to a DELETE of staged parts."""

    topic: str
    writer: str
    dropped: int
    performance: Performance


class BackupRow(Struct):
    """A backup that this run of the server has made. `bytes` is the size of all its files, `copied_bytes` of those that
    its directory did not have.
    """

    id: str
    to: str
    state: str
    began_ts: int
    taken_ts: int | None
    ended_ts: int | None
    bytes: int
    done_bytes: int
    copied_bytes: int
    files: int
    copied_files: int
    damaged: list[str]
    error: str | None


class BackupState(Struct):
    """The state of one backup."""

    backup: BackupRow
    performance: Performance


class BackupList(Struct):
    """The answer with the backups that began since the server started, oldest first; at most the newest 100."""

    backups: list[BackupRow]
    performance: Performance
