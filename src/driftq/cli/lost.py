"""What `driftq doctor` says about `lost/`: files of segments that were given up."""

from collections.abc import Iterator
from pathlib import Path

from driftq.engine.capture import decode_topic
from driftq.errors import DriftQError
from driftq.seam.disk import OsDisk
from driftq.storage.layout import Layout
from driftq.storage.snapshot import newest_snapshot

ADVICE = (
    "readers got a tombstone for these records; save what you need from the files, or have `driftq repair` look for"
    " readable blocks; the server removes them with their topic, or when retention passes them"
)


def lost_segments(data_dir: Path, cold_dir: Path | None) -> Iterator[tuple[str, int, list[str]]]:
    """Yield topic, first seq and files of every segment in `lost/`. Raises OSError."""
    layout = Layout(OsDisk(), str(data_dir), None if cold_dir is None else str(cold_dir))
    lost = layout.lost()
    names: dict[int, str] | None = None
    for cold in (False, True):
        for topic_id in lost.topic_ids(cold=cold):
            names = _topic_names(layout) if names is None else names
            for first_seq, suffixes in sorted(lost.segment_files(topic_id, cold=cold).items()):
                files = [lost.segment_path(topic_id, first_seq, suffix) for suffix in sorted(suffixes)]
                yield names.get(topic_id, f"id {topic_id}"), first_seq, files


def _topic_names(layout: Layout) -> dict[int, str]:
    """Return the names of topics by id, as far as the newest checkpoint knows them."""
    try:
        _, snapshot, _ = newest_snapshot(layout)
    except (OSError, DriftQError):
        return {}
    topics = [] if snapshot is None else [decode_topic(content) for content in snapshot.topics]
    return {topic.topic_id: topic.name for topic in topics}
