"""The form of an answer (http-v1 §1.2): compact JSON and a newline, and the id of its request."""

from collections.abc import Callable
from typing import TypeVar

from msgspec import json
from msgspec.structs import replace

from driftq.http.answer import Answer, Promise, Stream
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.v1.errors import JSON, failed_reply
from driftq.seam.entropy import Entropy
from driftq.seam.runtime import Pending

T = TypeVar("T")

ID_BYTES = 12

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


def request_id(request: Request, entropy: Entropy) -> bytes:
    """What the caller calls its request, else a name of our own."""
    return (request.header(b"x-request-id") or b"").strip() or entropy.token(ID_BYTES).hex().encode()


def labelled(request: Request, answer: Answer, entropy: Entropy) -> Answer:
    """The answer with the id of its request; a promise is kept with an error body where it fails."""
    label = (b"x-request-id", request_id(request, entropy))
    if isinstance(answer, Reply):
        return _with(answer, label)
    if isinstance(answer, Stream):
        return replace(answer, headers=(label, *answer.headers))
    if not isinstance(answer, Pending):
        return answer
    promised = Promise()

    def settle(done: Pending[Reply]) -> None:
        reply = done.result() if done.error is None else failed_reply(request, done.error)
        promised.resolve(_with(reply, label))

    answer.then(settle)
    return promised.result() if promised.settled else promised


def labelled_reply(request: Request, reply: Reply, entropy: Entropy) -> Reply:
    """The same for a reply that is there."""
    return _with(reply, (b"x-request-id", request_id(request, entropy)))


def _with(reply: Reply, label: tuple[bytes, bytes]) -> Reply:
    """The same with its id, and never to be packed."""
    return Reply(reply.status, reply.body, reply.content_type, (label, *reply.headers), plain=True)
