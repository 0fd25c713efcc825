"""From a call to its plan: one request, made again where that may help, and its answer decoded."""

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
"""By the type of an answer; making one costs more than using it."""

Query = Mapping[str, str | int | bool | None]


class Calls:
    """How one client makes its calls. It never waits longer than `patience_s` because a server asks for it."""

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
        """A call with JSON both ways; members of a body or query that are None are left out."""
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
        """A success. Raises ApiError or TransportError once no more tries are left."""
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
        """Return what comes before the next try."""
        seconds = self.retries.pause_s(attempt, error, self._entropy)
        # What a `Retries` says is the caller's wish; what a server asks for may be anybody's.
        return Pause(min(seconds, self.patience_s) if asked_s(error) else seconds, in_call)

    def fresh_key(self) -> str | None:
        """An idempotency key nobody has used; None where nothing is ever sent twice."""
        return self.random_key() if self.retries.count else None

    def random_key(self) -> str:
        """Return an idempotency key that is not in use."""
        return self._entropy.token(16).hex()

    def pages(
        self, path: str, answer: type[Page], rows: Callable[[Page], list[T]], query: Query | None = None
    ) -> Flow[T]:
        """All rows of a list, page after page."""
        cursor: str | None = ""
        while cursor is not None:
            page = yield from self.json("GET", path, answer, query={**(query or {}), "cursor": cursor or None})
            for row in rows(page):
                yield Emit(row)
            cursor = page.next_cursor


def _is_spent(request: Request) -> bool:
    """Whether a part of the body is gone that a second try would need."""
    return isinstance(request.content, Body) and request.content.spent


def decoded(response: Response, answer: type[T]) -> T:
    """The body as what it should be. Raises ProtocolError."""
    if answer is type(None):
        return None
    try:
        decoder = _decoders.get(answer)
        if decoder is None:
            decoder = _decoders[answer] = Decoder(answer)
        value: T = decoder.decode(response.content)
    except MsgspecError as error:
        raise ProtocolError(f"the answer is none of a DriftQ server's: {error}; is the address right?") from None
    return value


def present(members: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not None."""
    return {name: value for name, value in members.items() if value is not None}


def query_of(values: Query) -> dict[str, str]:
    """As text: booleans in JSON's words, None left out."""
    return {
        name: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value is not None
    }


def path_of(*parts: str) -> str:
    """A path with every part encoded."""
    return "/" + "/".join(quote(part, safe=":-._~>") for part in parts)
