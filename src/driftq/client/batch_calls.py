"""Calls about many entries at once (http-v1 §22): one result for each, and further tries for those that may succeed.

    all entries → sent → results; those that failed for now → sent again, after a pause → …

An entry is sent again in the cases in which a single call would be (`client/transport/retry`), and gets as many tries.
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
    """The answer to a batch."""

    @property
    def results(self) -> Sequence[R_co]:
        """One for each entry, in order."""
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
    """Return the result of every entry, or its error, in order. Raise ClientError where the call itself fails."""
    found: dict[int, R | ApiError] = {}
    left: Sequence[int] = range(len(entries))
    for attempt in count():
        if not left:
            break
        body = encode({**shared, "entries": [entries[place] for place in left]})
        request = Request("POST", path, headers=JSON, content=body, again=attempt > 0)
        results = decoded((yield from calls.response(request, repeat)), answer).results
        if len(results) != len(left):
            raise ProtocolError(f"{len(results)} results came for {len(left)} entries")
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
