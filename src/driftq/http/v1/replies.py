"""The form of answers of `/v1` (http-v1 §1.2): compact JSON and a newline, never compressed."""

from collections.abc import Callable
from typing import TypeVar

from msgspec import json

from driftq.http.answer import Answer, Promise
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.v1.errors import JSON, failed_reply
from driftq.system.runtime import Pending

T = TypeVar("T")

NO_CONTENT = Reply(204, b"", b"")
"""A reply without body and content type."""


def json_reply(status: int, value: object) -> Reply:
    """Return a reply with `value` encoded as its JSON body."""
    return Reply(status, json.encode(value) + b"\n", JSON)


def after(pending: Pending[T], make: Callable[[T], Reply]) -> Pending[Reply]:
    """Return a promise of the reply that `make` builds from the result of `pending`."""
    answer: Pending[Reply] = Pending()

    def settle(done: Pending[T]) -> None:
        if done.error is not None:
            answer.fail(done.error)
            return
        try:
            reply = make(done.result())
        except Exception as error:  # noqa: BLE001  # a bug ends one request; others wait for this commit too
            answer.fail(error)
        else:
            answer.resolve(reply)

    pending.then(settle)
    return answer


def finished(request: Request, answer: Answer) -> Answer:
    """Return the answer marked as never compressed; a promise that fails becomes an error body."""
    if isinstance(answer, Reply):
        return plain(answer)
    if not isinstance(answer, Pending):
        return answer
    promised = Promise()

    def settle(done: Pending[Reply]) -> None:
        promised.resolve(plain(done.result() if done.error is None else failed_reply(request, done.error)))

    answer.then(settle)
    return promised.result() if promised.settled else promised


def plain(reply: Reply) -> Reply:
    """Return the reply marked as never compressed."""
    return Reply(reply.status, reply.body, reply.content_type, reply.headers, plain=True)
