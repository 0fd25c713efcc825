"""Plans of single calls: send a request, retry it where that may help, and decode the answer."""

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, TypeVar
from urllib.parse import quote

from msgspec import MsgspecError, structs
from msgspec.json import Decoder, encode

from driftq.client.errors import ClientError, ProtocolError, api_error
from driftq.client.node_name import NodeName
from driftq.client.transport.plan import Emit, Flow, Pause, Plan, Request, Response
from driftq.client.transport.retry import Repeat, Retries, asked_s, may_retry
from driftq.model.v0_answers import Listing
from driftq.system.entropy import Entropy
from driftq.system.http_client.request_body import Body

T = TypeVar("T")
Page = TypeVar("Page", bound=Listing)

JSON = {"content-type": "application/json"}
_decoders: dict[Any, Decoder[Any]] = {}
"""One decoder per answer type, kept because making one costs more than using it."""

Query = Mapping[str, str | int | bool | None]


class Calls:
    """Makes the calls of one client. A server can make it wait for at most `patience_s` seconds before a retry."""

    def __init__(self, retries: Retries, entropy: Entropy, patience_s: float, node: NodeName | None = None) -> None:
        self.retries = retries
        self.patience_s = patience_s
        self.node = node or NodeName(None, entropy)
        self._entropy = entropy

    def json(
        self,
        method: str,
        path: str,
        answer: type[T],
        *,
        query: Query | None = None,
        body: object = None,
        repeat: Repeat = Repeat.SAME,
        wait_s: float = 0.0,
    ) -> Plan[T]:
        """Send JSON, return the decoded JSON answer. Members of `body` and `query` that are None are left out."""
        request = Request(
            method,
            path,
            query_of(query or {}),
            {} if body is None else JSON,
            None if body is None else encode(present(body) if isinstance(body, dict) else body),
            wait_s,
        )
        response = yield from self.response(request, repeat)
        return decoded(response, answer)

    def response(self, request: Request, repeat: Repeat) -> Plan[Response]:
        """Return a successful response. Raise ApiError or TransportError when no retry is left or allowed."""
        for attempt in count():
            try:
                response: Response = yield (structs.replace(request, again=True) if attempt else request)
                if response.status < 300:
                    return response
                raise api_error(response.status, response.headers, response.content)
            except ClientError as error:
                if attempt >= self.retries.count or not may_retry(error, repeat) or _is_spent(request):
                    raise
                if asked_s(error) > self.patience_s:
                    raise
                failure = error
            if (yield self.pause(attempt, failure, in_call=True)) is False:
                raise failure
        raise AssertionError("unreachable")

    def pause(self, attempt: int, error: ClientError | None, *, in_call: bool = False) -> Pause:
        """Return the pause before the next try."""
        seconds = self.retries.pause_s(attempt, error, self._entropy)
        # The caller chose the pauses of `Retries`; a pause that a server asks for has a limit.
        return Pause(min(seconds, self.patience_s) if asked_s(error) else seconds, in_call)

    def fresh_key(self) -> str | None:
        """Return a new idempotency key, or None if this client never retries."""
        return self.random_key() if self.retries.count else None

    def random_key(self) -> str:
        """Return a random idempotency key of 16 bytes in hexadecimal."""
        return self._entropy.token(16).hex()

    def pages(
        self, path: str, answer: type[Page], rows: Callable[[Page], list[T]], query: Query | None = None
    ) -> Flow[T]:
        """Yield all rows of a list, and get its pages one after the other."""
        cursor: str | None = ""
        while cursor is not None:
            page = yield from self.json("GET", path, answer, query={**(query or {}), "cursor": cursor or None})
            for row in rows(page):
                yield Emit(row)
            cursor = page.next_cursor


def _is_spent(request: Request) -> bool:
    """Whether pieces of the body were read that a second try could not read again."""
    return isinstance(request.content, Body) and request.content.spent


def decoded(response: Response, answer: type[T]) -> T:
    """Return the body of a response, decoded as `answer`. Raise ProtocolError if it is something else."""
    if answer is type(None):
        return None
    try:
        decoder = _decoders.get(answer)
        if decoder is None:
            decoder = _decoders[answer] = Decoder(answer)
        value: T = decoder.decode(response.content)
    except MsgspecError as error:
        raise ProtocolError(f"the answer is not from a DriftQ server: {error}; is the address right?") from None
    return value


def present(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that are not None."""
    return {name: value for name, value in members.items() if value is not None}


def query_of(values: Query) -> dict[str, str]:
    """Return query values as text: booleans as `true` and `false`; values that are None are left out."""
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value is not None
    }


def path_of(*parts: str) -> str:
    """Return a path of these parts, each percent-encoded."""
    return "/" + "/".join(quote(part, safe=":-._~>") for part in parts)
