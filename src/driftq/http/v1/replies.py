"""The form of an answer (http-v1 §1.2): compact JSON and a newline, never packed."""

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
"""Neither body nor type."""


def json_reply(status: int, value: object) -> Reply:
    """A reply whose body is JSON."""
    return Reply(status, json.encode(value) + b"\n", JSON)


def after(pending: Pending[T], make: Callable[[T], Reply]) -> Pending[Reply]:
    """The reply that is made of an answer to come."""
    answer: Pending[Reply] = Pending()

    def settle(done: Pending[T]) -> None:
        if done.error is not None:
            answer.fail(done.error)
            return
        try:
            reply = make(done.result())
        except Exception as error:  # noqa: BLE001  # a bug in one handler ends one request: others wait for this commit too
            answer.fail(error)
        else:
            answer.resolve(reply)

    pending.then(settle)
    return answer


def finished(request: Request, answer: Answer) -> Answer:
    """The answer, never to be packed; a promise is kept with an error body where it fails."""
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
    """The same reply, never to be packed."""
    return Reply(reply.status, reply.body, reply.content_type, reply.headers, plain=True)
