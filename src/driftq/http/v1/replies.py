"""The form of answers of `/v1` (http-v1 §1.2): compact JSON and a newline, never compressed."""

from msgspec import json

from driftq.http.answer import Answer, promised
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.v1.errors import JSON, failed_reply
from driftq.system.runtime import Pending

NO_CONTENT = Reply(204, b"", b"")
"""A reply without body and content type."""


def json_reply(status: int, value: object) -> Reply:
    """Return a reply with `value` encoded as its JSON body."""
    return Reply(status, json.encode(value) + b"\n", JSON)


def finished(request: Request, answer: Answer) -> Answer:
    """Return the answer marked as never compressed; a promise that fails becomes an error body."""
    if isinstance(answer, Reply):
        return plain(answer)
    if not isinstance(answer, Pending):
        return answer
    return promised(
        answer, lambda done: plain(done.result() if done.error is None else failed_reply(request, done.error))
    )


def plain(reply: Reply) -> Reply:
    """Return the reply marked as never compressed."""
    return Reply(reply.status, reply.body, reply.content_type, reply.headers, plain=True)
