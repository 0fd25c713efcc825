"""Collects the vitals of a server, for the JSON metrics and as Prometheus families."""

import os
import resource
from collections.abc import Iterator

from driftq.http.access import Access, Scope
from driftq.http.metrics.prometheus_text import Family, counter, gauge
from driftq.model.units import MS_PER_S
from driftq.model.vitals import CallerVitals, CheckpointVitals, ClockVitals, DiskVitals, PlaceVitals, Vitals
from driftq.server import Server
from driftq.system.machine import count_handles


def vitals_of(server: Server, access: Access) -> Vitals:
    """Return the vitals as this caller may see them."""
    return Vitals(
        _checkpoint(server),
        _disk(server),
        server.backups.last_ts,
        _clock(server),
        CallerVitals(
            None if access.key_id is None else access.key_id + 1,
            [scope.name.lower() for scope in Scope if access.may(scope) and scope.name],
            list(access.prefixes),
        ),
        _place(server) if access.may(Scope.ADMIN) and not access.prefixes else None,
    )


def vital_families(server: Server) -> Iterator[Family]:
    """Yield the vitals that Prometheus shows: checkpoint, disk and backup."""
    checkpoint, disk, backup_ts = _checkpoint(server), _disk(server), server.backups.last_ts
    age = checkpoint.age_ms / MS_PER_S
    yield gauge("driftq_checkpoint_age_seconds", "Seconds since the last checkpoint, or since the start.", age)
    yield counter("driftq_checkpoint_failures_total", "Checkpoints that failed.", checkpoint.failures)
    yield gauge(
        "driftq_wal_bytes_since_checkpoint", "Bytes of the log that the next start reads.", checkpoint.wal_bytes
    )
    if disk is not None:
        yield gauge("driftq_disk_free_bytes", "Free bytes on the file system of the data directory.", disk.free_bytes)
        yield gauge(
            "driftq_disk_total_bytes", "Size of the file system of the data directory, in bytes.", disk.total_bytes
        )
        if disk.fill_bytes_per_s is not None:
            text = "Bytes per second by which the free space shrank in the last hour."
            yield gauge("driftq_disk_fill_bytes_per_second", text, disk.fill_bytes_per_s)
    if backup_ts is not None:
        text = "Unix time of the newest backup, in seconds."
        yield gauge("driftq_last_backup_timestamp_seconds", text, backup_ts / MS_PER_S)


def _checkpoint(server: Server) -> CheckpointVitals:
    checkpointer = server.engine.checkpointer
    return CheckpointVitals(
        checkpointer.record.age_ms,
        checkpointer.record.failures,
        max(0, checkpointer.wal_bytes),
        server.settings.checkpoint_interval_ms,
    )


def _disk(server: Server) -> DiskVitals | None:
    space = server.engine.space
    found = space.last
    return None if found is None else DiskVitals(found.free, found.total, space.fill_bytes_per_s)


def _clock(server: Server) -> ClockVitals:
    now_ms = server.clock.wall_ms()
    return ClockVitals(now_ms, max(0, server.engine.time.now() - now_ms))


def _place(server: Server) -> PlaceVitals:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return PlaceVitals(
        os.getpid(),
        server.hot_root,
        server.cold_root,
        server.settings.backup_dir,
        count_handles(),
        0 if limit == resource.RLIM_INFINITY else limit,
    )
