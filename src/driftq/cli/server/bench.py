"""`driftq bench`: measure the rates and latencies of a server in a few seconds, on a topic that is deleted afterwards.

The load comes from `cli/server/load_generator`: prepared requests on several connections, one request in flight on
each. So the figures show the server and the network, as long as this machine has a free core for the load generator.
"""

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple
from urllib.parse import urlsplit

import typer
from msgspec import json

from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.output import Json, progress, show_rows
from driftq.cli.server.load_generator import (
    LoadGenerator,
    RefusedError,
    again_and_again,
    drive,
    http_length,
    http_request,
)
from driftq.cli.server_access import KeyFile, Url, api_key, connected
from driftq.model.topic_config import Durability
from driftq.system.entropy import SystemEntropy

if TYPE_CHECKING:
    from driftq.client import Client

_REQUESTS = 20
"""Number of different requests per workload; they are sent in a cycle."""
_PAGE = 1000
_PAYLOAD = "x" * 85
_FILLING_S = 60.0
_FIELDS = (
    *("workload", "connections", "requests", "requests_per_s", "records_per_s"),
    *("p50_ms", "p90_ms", "p99_ms", "max_ms"),
)


class BenchTarget(NamedTuple):
    """Address, path and headers of the topic under load."""

    address: tuple[str, int]
    path: str
    headers: tuple[str, ...]

    def request(self, path: str, body: bytes) -> bytes:
        """Return the bytes of a POST request to the topic."""
        return http_request("POST", self.path + path, body, *self.headers)


def bench(
    *,
    seconds: Annotated[float, typer.Option(min=0.1, max=600, help="How long each workload runs.")] = 3.0,
    connections: Annotated[
        int, typer.Option(min=1, max=1000, help="Number of connections, each with one request in flight.")
    ] = 8,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Records per write in the batch workload.")] = 100,
    durability: Annotated[Durability, typer.Option(help="Durability class of the topic.")] = Durability.DISK,
    url: Url = None,
    key_file: KeyFile = None,
    as_json: Json = False,
) -> None:
    """Write and read for a few seconds, and print rates and latencies. Records are about 110 bytes."""
    name = f"bench-{SystemEntropy().token(6).hex()}"
    with connected(url, key_file) as client:
        target = _target(client, name, key_file)
        client.topic(name).create(durability=durability)
        try:
            rows = _measure(target, seconds, connections, batch)
        except RefusedError as refusal:
            raise CommandError(f"the server refused: {refusal}") from None
        except OSError as error:
            raise CommandError(f"the connection broke: {error}; check the server", ExitCode.UNREACHABLE) from None
        finally:
            client.topic(name).delete()
    show_rows(rows, _FIELDS, as_json=as_json)


def _target(client: "Client", name: str, key_file: Path | None) -> BenchTarget:
    parts = urlsplit(client.url)
    if parts.scheme != "http" or parts.hostname is None:
        raise CommandError("bench supports plain HTTP only; pass --url http://…", ExitCode.USAGE)
    key = api_key(key_file) or os.environ.get("DRIFTQ_API_KEY", "").strip()
    headers = () if not key else (f"authorization: Bearer {key}",)
    return BenchTarget((parts.hostname, parts.port or 80), f"{parts.path}/v0/topics/{name}", headers)


class _Workload(NamedTuple):
    name: str
    connections: int
    records: int
    """Number of records per request."""
    requests: list[bytes]


def _measure(target: BenchTarget, seconds: float, connections: int, batch: int) -> list[dict[str, object]]:
    asyncio.run(drive(target.address, [iter(_writes(target, _PAGE))], http_length, _FILLING_S))
    workloads = [
        _Workload(f"write_{batch}", connections, batch, _writes(target, batch)),
        _Workload("write_1", connections, 1, _writes(target, 1)),
        _Workload("write_1_alone", 1, 1, _writes(target, 1)),
        _Workload(f"read_{_PAGE}", connections, _PAGE, _reads(target)),
    ]
    rows = []
    with progress("measuring", len(workloads)) as tell:
        for number, workload in enumerate(workloads, 1):
            streams = [again_and_again(workload.requests) for _ in range(workload.connections)]
            rows.append(_row(workload, asyncio.run(drive(target.address, streams, http_length, seconds))))
            tell(number)
    return rows


def _writes(target: BenchTarget, count: int) -> list[bytes]:
    return [target.request("?return_seqs=false", _records(count, number * count)) for number in range(_REQUESTS)]


def _records(count: int, first: int) -> bytes:
    return json.encode(
        {"records": [{"data": {"id": number, "payload": _PAYLOAD}} for number in range(first, first + count)]}
    )


def _reads(target: BenchTarget) -> list[bytes]:
    return [
        target.request("/diff", json.encode({"from_seq": number * _PAGE, "limit": _PAGE}))
        for number in range(_REQUESTS)
    ]


def _row(workload: _Workload, load: LoadGenerator) -> dict[str, object]:
    return {
        "workload": workload.name,
        "connections": workload.connections,
        "requests": load.replies,
        "requests_per_s": round(load.per_second),
        "records_per_s": round(load.per_second * workload.records),
        "p50_ms": round(load.quantile(0.5), 3),
        "p90_ms": round(load.quantile(0.9), 3),
        "p99_ms": round(load.quantile(0.99), 3),
        "max_ms": round(load.quantile(1.0), 3),
    }
