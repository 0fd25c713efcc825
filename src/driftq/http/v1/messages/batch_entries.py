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
    """Return the reply to a batch: what `ask` says of every entry, in order, when the last of them is answered."""

    def asked(entry: Entry) -> "Pending[T] | Exception | T":
        try:
            return ask(entry)
        except Exception as error:  # noqa: BLE001  # a refusal or a bug of one entry: the others are asked all the same
            return error

    return answer_all(request, [asked(entry) for entry in entries], shown)


def answer_all(
    request: Request, asked: "Sequence[Pending[T] | Exception | T]", shown: Callable[[T], Result]
) -> Pending[Reply]:
    """Return the reply to a batch of which this was said, in order. Entries may share what they wait for."""
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
