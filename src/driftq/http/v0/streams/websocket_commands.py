"""The commands of a WebSocket (http-v0 §13): subscribe, unsubscribe, publish, ping; and the messages that answer them.

A command that fails is answered with the same code as over HTTP; a message that is not a command, with `invalid_json`.
The scopes of the key are checked for each command.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder, encode

from driftq.codec import json_text
from driftq.codec.write_body import decode_write
from driftq.engine.write.appender import AppendResult
from driftq.errors import DriftQError, InvalidRequestError
from driftq.features.watch.feed import Feed
from driftq.features.watch.position import begin
from driftq.http.access import Access, Scope
from driftq.http.v0.bodies import shown_sync_ms, since_ms
from driftq.http.v0.broker_topics import check_inline, check_own
from driftq.http.v0.streams.watch_bodies import SUBSCRIBE_BODY, options_of, starts_of
from driftq.http.v0.streams.watch_sessions import cursors_of
from driftq.model.limits import NESTING_MAX
from driftq.model.topic_config import TopicConfig
from driftq.model.v0_answers import Cursor, Performance
from driftq.server import Server
from driftq.system.runtime import Pending, run

_log = logging.getLogger(__name__)

T = TypeVar("T")

NO_ID = b"null"
PUBLISH = "publish"


class _Head(Struct):
    op: str
    request_id: Raw = Raw(NO_ID)


class _Unsubscribe(Struct):
    topic: str | UnsetType = UNSET
    topics: list[str] | UnsetType = UNSET


class _Publish(Struct):
    """The fields of a publish that are checked before its records are decoded."""

    topic: str
    records: list[Raw]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | None = None
    config: TopicConfig | None = None
    disable_backpressure: bool = False
    return_seqs: bool = True


class _Subscribed(Struct, tag_field="op", tag="subscribed"):
    request_id: Raw
    topics: dict[str, Cursor]


class _Unsubscribed(Struct, tag_field="op", tag="unsubscribed"):
    request_id: Raw
    topics: list[str]


class _Ack(Struct, tag_field="op", tag="ack"):
    request_id: Raw
    topic: str
    first_seq: int
    last_seq: int
    seqs: list[int] | None
    head_seq: int
    count: int
    created: bool
    deduped: bool
    performance: Performance


_HEAD = Decoder(_Head)
_UNSUBSCRIBE = Decoder(_Unsubscribe)
_PUBLISH = Decoder(_Publish)


class NoCommandError(Exception):
    """The message is not a command. This error exists only on WebSockets: over HTTP everything is a request."""

    code = "invalid_json"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BinaryError(NoCommandError):
    """The message is binary, and only text is accepted."""

    code = "unsupported_message"


class Command(Struct):
    """A message, with the fields that could be read."""

    op: str
    request_id: bytes
    text: bytes
    error: NoCommandError | None = None


def read_command(message: str | bytes) -> Command:
    """Return the command in a message; one that cannot be read has its error in `error`."""
    if isinstance(message, bytes):
        return Command("", NO_ID, b"", BinaryError("only text messages are supported"))
    try:
        text = json_text.compact(message.encode("utf-8", "surrogatepass"))
        head = _decoded(_HEAD, text)
    except InvalidRequestError as error:
        return Command("", NO_ID, b"", NoCommandError(error.message))
    except NoCommandError as error:
        return Command("", NO_ID, b"", error)
    return Command(head.op, bytes(head.request_id), text)


def error_message(request_id: bytes, code: str, message: str) -> bytes:
    """Return the message that reports an error to the peer."""
    return b'{"op":"error","request_id":%b,"code":"%b","message":%b}' % (request_id, code.encode(), encode(message))


Refused = Callable[[Command, "DriftQError | NoCommandError"], None]
"""Called with each command that is answered with an error."""


class SocketCommands:
    """Runs the commands of one WebSocket."""

    def __init__(self, server: Server, access: Access, feed: Feed, refused: Refused) -> None:
        self._server = server
        self._refused = refused
        self._engine = server.engine
        self._limits = server.settings.limits
        self._access = access
        self._feed = feed
        self._known: dict[str, Callable[[Command], bytes | Pending[bytes]]] = {
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            PUBLISH: self._publish,
            "ping": lambda command: b'{"op":"pong","request_id":%b}' % command.request_id,
        }

    def run(self, command: Command) -> Pending[bytes]:
        """Run a command. Returns its answer, which may already be settled. Never fails."""
        answer: Pending[bytes] = Pending()
        try:
            found = self._run(command)
        except Exception as error:  # noqa: BLE001  # a bug in one command is that command's error
            answer.resolve(self._failed(command, error))
            return answer
        if isinstance(found, bytes):
            answer.resolve(found)
        else:
            found.then(
                lambda done: answer.resolve(done.result() if done.error is None else self._failed(command, done.error))
            )
        return answer

    def _failed(self, command: Command, error: BaseException) -> bytes:
        if isinstance(error, DriftQError | NoCommandError):
            self._refused(command, error)
            return error_message(command.request_id, error.code, error.message)
        _log.error("the command %s failed", command.op, exc_info=error)
        return error_message(command.request_id, "internal", "internal server error; see the server log")

    def _run(self, command: Command) -> bytes | Pending[bytes]:
        if command.error is not None:
            raise command.error
        known = self._known.get(command.op)
        if known is None:
            raise NoCommandError("op must be subscribe, unsubscribe, publish or ping")
        self._server.check_ready()
        return known(command)

    def _subscribe(self, command: Command) -> Pending[bytes]:
        body = _decoded(SUBSCRIBE_BODY, command.text)
        json_text.check_depth(command.text, NESTING_MAX)
        self._access.check(Scope.READ)
        entries = body.entries()
        for name in entries:
            self._access.check_name(name)
        starts = starts_of(entries, self._limits)
        options = options_of(body, self._limits)

        async def subscribed() -> bytes:
            begun = await begin(self._engine, starts, lenient=body.lenient, strong=False)
            for name, one in begun.items():
                self._feed.add(name, one.place, options)
            return encode(_Subscribed(Raw(command.request_id), cursors_of(begun, with_epoch=body.include_epoch)))

        return run(subscribed())

    def _unsubscribe(self, command: Command) -> bytes:
        body = _decoded(_UNSUBSCRIBE, command.text)
        if body.topic is UNSET and body.topics is UNSET:
            raise InvalidRequestError("unsubscribe needs topic or topics")
        names = [] if body.topic is UNSET else [body.topic]
        names += [] if body.topics is UNSET else body.topics
        names = list(dict.fromkeys(names))
        for name in names:
            self._feed.remove(name)
        return encode(_Unsubscribed(Raw(command.request_id), names))

    def _publish(self, command: Command) -> Pending[bytes]:
        began_ns = self._server.clock.monotonic_ns()
        body = _decoded(_PUBLISH, command.text)
        self._access.check(Scope.WRITE)
        self._access.check_name(body.topic)
        check_own(body.topic)
        if body.config is not None:
            self._access.check(Scope.ADMIN)
        wanted = decode_write(command.text, self._limits)
        if wanted.config is not None:
            check_inline(self._engine, body.topic, wanted.config)
        submitted_ns = self._server.clock.monotonic_ns()
        answer: Pending[bytes] = Pending()

        def settle(done: Pending[AppendResult]) -> None:
            if done.error is not None:
                answer.fail(done.error)
            else:
                figures = self._figures(done.result(), began_ns, submitted_ns)
                answer.resolve(_acked(command, body, done.result(), figures))

        self._engine.append(
            body.topic,
            wanted.rows,
            key=wanted.idempotency_key,
            create=wanted.create,
            config=wanted.config,
            yields=not wanted.disable_backpressure,
        ).then(settle)
        return answer

    def _figures(self, done: AppendResult, began_ns: int, submitted_ns: int) -> Performance:
        now_ns = self._server.clock.monotonic_ns()
        total_ms = since_ms(began_ns, now_ns)
        if done.deduped:
            return Performance(total_ms)
        append_ms = max(0.0, since_ms(submitted_ns + done.sync_ns, now_ns))
        return Performance(total_ms, append_ms, shown_sync_ms(done.sync_ns))


def _acked(command: Command, body: _Publish, done: AppendResult, figures: Performance) -> bytes:
    return encode(
        _Ack(
            Raw(command.request_id),
            body.topic,
            done.first_seq,
            done.last_seq,
            list(range(done.first_seq, done.last_seq + 1)) if body.return_seqs else None,
            done.head_seq,
            done.count,
            done.created,
            done.deduped,
            figures,
        )
    )


def _decoded(decoder: Decoder[T], text: bytes) -> T:
    """Return the decoded message. Raise NoCommandError if it does not match the decoder's type."""
    try:
        return json_text.parse(decoder, text)
    except InvalidRequestError as error:
        raise NoCommandError(error.message) from None
