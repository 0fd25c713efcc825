"""Calls for many entries at once (http-v1 §22): one result per entry, and retries for entries that may succeed later.

    all entries → sent → results; entries with a temporary error → pause → sent again → …

An entry is retried in the same cases and as often as a single call (`client/transport/retry`).
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Protocol, TypeVar

from msgspec.json import encode

from driftq.client.errors import ApiError, ProtocolError, refused
from driftq.client.transport.calls import JSON, Calls, decoded
from driftq.client.transport.plan import Plan, Request
from driftq.client.transport.retry import Repeat, asked_s, may_retry
from driftq.model.v1_answers import EntryResult

R = TypeVar("R", bound=EntryResult)
R_co = TypeVar("R_co", bound=EntryResult, covariant=True)


class Results(Protocol[R_co]):
    """The answer to a call with many entries."""

    @property
    def results(self) -> Sequence[R_co]:
        """Return one result for each entry, in order."""
        ...


def each(
    calls: Calls,
    path: str,
    shared: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    answer: type[Results[R]],
    *,
    repeat: Repeat = Repeat.SAME,
) -> Plan[list[R | ApiError]]:
    """Return the result or the error of every entry, in order. Raise ClientError if the call itself fails."""
    found: dict[int, R | ApiError] = {}
    left: Sequence[int] = range(len(entries))
    for attempt in count():
        if not left:
            break
        body = encode({**shared, "entries": [entries[place] for place in left]})
        request = Request("POST", path, headers=JSON, content=body, again=attempt > 0)
        results = decoded((yield from calls.response(request, repeat)), answer).results
        if len(results) != len(left):
            raise ProtocolError(f"the server returned {len(results)} results for {len(left)} entries")
        again: list[int] = []
        for place, result in zip(left, results, strict=True):
            if result.code < 300:
                found[place] = result
                continue
            error = found[place] = refused(result)
            if may_retry(error, repeat) and asked_s(error) <= calls.patience_s:
                again.append(place)
                failure = error
        if not again or attempt >= calls.retries.count or (yield calls.pause(attempt, failure, in_call=True)) is False:
            break
        left = again
    return [found[place] for place in range(len(entries))]
