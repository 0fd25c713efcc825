"""The batch forms of calls that settle something (http-v1 §22): shared fields, entries, one result for each in order.

    decoded → shared fields checked → every entry asked in order, in one turn of the loop → answered together

The entries of a call are asked in one turn, so what they log is handed to the log writer together and synced once. What
is wrong with an entry is its own result; what is wrong with the shared fields, or with the JSON, refuses the call.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from driftq.errors import InvalidRequestError
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.v1.errors import entry_failed
from driftq.http.v1.form import json_reply
from driftq.seam.runtime import Pending

ENTRIES_MAX = 1000

Entry = TypeVar("Entry")
T = TypeVar("T")
Result = dict[str, object]


def given_entries(entries: Sequence[Entry] | None) -> Sequence[Entry]:
    """Return the entries of a call. Raise InvalidRequestError unless there are 1 to 1000."""
    if entries is None or not 0 < len(entries) <= ENTRIES_MAX:
        raise InvalidRequestError(f"a batch has 1 to {ENTRIES_MAX} entries")
    return entries


def answered(
    request: Request,
    entries: Sequence[Entry],
    ask: Callable[[Entry], "Pending[T] | T"],
    shown: Callable[[T], Result],
) -> Pending[Reply]:
    """Return the reply to a batch: what `ask` says of every entry, in order, when the last of them is answered."""
    answer: Pending[Reply] = Pending()
    results: list[Result] = [{}] * len(entries)
    left = len(entries)

    def done(place: int, result: Result) -> None:
        nonlocal left
        results[place] = result
        left -= 1
        if not left:
            answer.resolve(json_reply(200, {"results": results}))

    def settled(place: int, found: Pending[T]) -> None:
        done(place, shown(found.result()) if found.error is None else entry_failed(request, found.error))

    for place, entry in enumerate(entries):
        try:
            found = ask(entry)
        except Exception as error:  # noqa: BLE001  # a refusal or a bug of one entry: the others are asked all the same
            done(place, entry_failed(request, error))
            continue
        if isinstance(found, Pending):
            found.then(lambda one, place=place: settled(place, one))  # type: ignore[misc]
        else:
            done(place, shown(found))
    return answer
