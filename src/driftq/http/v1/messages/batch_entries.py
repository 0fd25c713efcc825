"""Batch forms of calls that settle something (http-v1 §22): shared fields, entries, one result for each in order.

    decoded → shared fields checked → every entry processed in order, in one loop turn → answered together

All entries of a call are processed in one loop turn, so their log entries reach the log writer together and share one
sync. An error in one entry is the result of that entry; an error in the shared fields or in the JSON refuses the call.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from driftq.errors import InvalidRequestError
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.v1.errors import entry_failed
from driftq.http.v1.replies import json_reply
from driftq.system.runtime import Pending

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
    """Return the reply to a batch: the result of `ask` for every entry, in order, once all are known."""

    def asked(entry: Entry) -> "Pending[T] | Exception | T":
        try:
            return ask(entry)
        except Exception as error:  # noqa: BLE001  # an error of one entry does not stop the others
            return error

    return answer_all(request, [asked(entry) for entry in entries], shown)


def answer_all(
    request: Request, asked: "Sequence[Pending[T] | Exception | T]", shown: Callable[[T], Result]
) -> Pending[Reply]:
    """Return the reply to a batch with these results, in order. Several entries may share one `Pending`."""
    answer: Pending[Reply] = Pending()
    waiting = {id(one): one for one in asked if isinstance(one, Pending) and not one.settled}
    left = len(waiting)

    def reply() -> Reply:
        distinct = {id(one): one for one in asked}
        results = {key: _result(request, one, shown) for key, one in distinct.items()}
        return json_reply(200, {"results": [results[id(one)] for one in asked]})

    def settled(_: Pending[T]) -> None:
        nonlocal left
        left -= 1
        if not left:
            answer.resolve(reply())

    if not waiting:
        answer.resolve(reply())
    for one in waiting.values():
        one.then(settled)
    return answer


def _result(request: Request, one: "Pending[T] | Exception | T", shown: Callable[[T], Result]) -> Result:
    if isinstance(one, Pending):
        return shown(one.result()) if one.error is None else entry_failed(request, one.error)
    return entry_failed(request, one) if isinstance(one, Exception) else shown(one)
