"""Figures of one minute that can be added up: counts, and a histogram of ages.

Ages go into buckets whose bounds grow by 5 %, so a percentile is accurate to 5 %. Two histograms are added by adding
their counts. So every batch can add to a minute, however late its records arrive.

With Spark Connect this code runs in the Connect server, pickled by value. So it uses no msgspec structs, which cannot
be pickled by value.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from msgspec import json

_GROWTH = math.log(1.05)

AGE_BUCKET = f"CASE WHEN age_ms <= 0 THEN 0 ELSE CAST(ceil(ln(age_ms + 1) / {_GROWTH!r}) AS INT) END"
"""The bucket of an age, as a Spark SQL expression."""

ROLLUP = pa.schema(
    [
        ("topic", pa.string()),
        ("tenant_id", pa.string()),
        ("minute", pa.timestamp("us", tz="UTC")),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("p50_age_ms", pa.int64()),
        ("p99_age_ms", pa.int64()),
        ("errors", pa.int64()),
        ("retries", pa.int64()),
        ("error_rate", pa.float64()),
        ("retry_rate", pa.float64()),
        ("ages", pa.string()),
    ]
)
"""One row for each topic, tenant and minute. `ages` is the histogram as JSON."""

ROLLUP_KEYS = ["topic", "tenant_id", "minute"]
Key = tuple[str, str, Any]


@dataclass
class Minute:
    """The figures of one topic, tenant and minute."""

    records: int = 0
    bytes: int = 0
    errors: int = 0
    retries: int = 0
    ages: dict[int, int] = field(default_factory=dict)

    def add(self, *, bucket: int | None, records: int, size: int, errors: int, retries: int) -> None:
        """Add counts. `bucket` is the age bucket of the added records."""
        self.records += records
        self.bytes += size
        self.errors += errors
        self.retries += retries
        if bucket is not None and records:
            self.ages[bucket] = self.ages.get(bucket, 0) + records

    def percentile(self, share: float) -> int | None:
        """Return the age in ms that this share of the records does not exceed, or None without records."""
        wanted = math.ceil(share * sum(self.ages.values()))
        for bucket in sorted(self.ages):
            wanted -= self.ages[bucket]
            if wanted <= 0:
                return age_of(bucket)
        return None

    def row(self, key: Key) -> dict[str, Any]:
        """Return the row of this minute in the table."""
        return {
            **dict(zip(ROLLUP_KEYS, key, strict=True)),
            "records": self.records,
            "bytes": self.bytes,
            "p50_age_ms": self.percentile(0.50),
            "p99_age_ms": self.percentile(0.99),
            "errors": self.errors,
            "retries": self.retries,
            "error_rate": self.errors / self.records if self.records else None,
            "retry_rate": self.retries / self.records if self.records else None,
            "ages": json.encode(self.ages).decode(),
        }


def bucket_of(age_ms: int) -> int:
    """Return the bucket of an age, as `AGE_BUCKET` computes it."""
    return 0 if age_ms <= 0 else math.ceil(math.log(age_ms + 1) / _GROWTH)


def age_of(bucket: int) -> int:
    """Return the highest age in ms of a bucket."""
    return math.floor(math.exp(bucket * _GROWTH) - 1 + 1e-9)


def load_minutes(rows: Iterable[dict[str, Any]]) -> dict[Key, Minute]:
    """Return the figures of rows of the table."""
    return {
        (row["topic"], row["tenant_id"], row["minute"]): Minute(
            row["records"],
            row["bytes"],
            row["errors"],
            row["retries"],
            json.decode(row["ages"], type=dict[int, int]),
        )
        for row in rows
    }
