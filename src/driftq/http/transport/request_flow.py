"""Processes one request where requests do not wait for each other: decompress, handle, compress."""

import asyncio
from collections.abc import Callable

from driftq.errors import DriftQError
from driftq.http.answer import StreamAnswer, Upgrade
from driftq.http.gzip_encoding import PACKED_MIN
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.transport.connection_context import Serving
from driftq.http.v0.errors import error_reply, refusal
from driftq.http.v1 import errors as broker
from driftq.http.v1.replies import plain
from driftq.system.runtime import Pending

Give = Callable[[Reply | StreamAnswer | Upgrade], None]
"""Called once with the answer; before `ask` returns if the answer is ready at once."""


def ask(serving: Serving, request: Request, give: Give, transport: asyncio.BaseTransport | None = None) -> None:
    """Have a request answered, and pass the answer to `give`."""

    def answered(answer: Reply | StreamAnswer | Upgrade) -> None:
        serving.requests.answered(request, answer, transport)

    unpacking = serving.packing.unpack(request, serving.terms.body_bytes_max)
    if unpacking is None:
        _ask(serving, request, answered, give)
    else:
        unpacking.then(lambda _: _ask(serving, request, answered, give))


def outcome(done: Pending[Reply]) -> Reply:
    """Return the reply of a finished handler; an error becomes an envelope."""
    if done.error is None:
        return done.result()
    if isinstance(done.error, DriftQError):
        return error_reply(done.error)
    return refusal("internal", "internal server error; see the server log")


def _ask(serving: Serving, request: Request, answered: Give, give: Give) -> None:
    def settle(done: Pending[Reply]) -> None:
        reply = outcome(done)
        answered(reply)
        _pack(serving, request, reply, give)

    answer = serving.handle(request)
    if isinstance(answer, Pending):
        answer.then(settle)
        return
    answered(answer)
    if isinstance(answer, Reply):
        _pack(serving, request, answer, give)
    else:
        give(answer)


def _pack(serving: Serving, request: Request, reply: Reply, give: Give) -> None:
    if reply.size >= PACKED_MIN:
        answer = serving.packing.pack(request, reply)
        if isinstance(answer, Pending):
            answer.then(lambda done: give(done.result()))
            return
        reply = answer
    give(reply)


_BROKER = (b"/v1", b"/metrics")


def refused(target: bytes, message: str, status: int) -> Reply:
    """Return the refusal of a malformed request, in the form of the API that its target (as far as read) belongs to."""
    if not target.startswith(_BROKER):
        return refusal("invalid_request", message, status=status)
    return plain(broker.refusal(status, message))
