"""The settings announced to an HTTP/2 peer, and the heads of requests and answers."""

from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

from driftq.http.reply import Reply
from driftq.http.request import Headers
from driftq.http.request_id import NAME, id_of
from driftq.http.transport.h1.request_parser import HEADER_BYTES_MAX, HEADERS_MAX, TARGET_BYTES_MAX
from driftq.http.transport.h2.h2_exchange import Exchange, ExchangeSender, Owner
from driftq.http.transport.request_flow import refused

EXCHANGES_MAX = 1024
EXCHANGE_WINDOW = 1 << 20
CONNECTION_WINDOW = 4 << 20

_FIRST_WINDOW = 65_535


def protocol() -> H2Connection:
    """Return the protocol object, with the windows and limits of this server announced."""
    connection = H2Connection(
        H2Configuration(
            client_side=False, header_encoding=None, validate_outbound_headers=False, normalize_outbound_headers=False
        )
    )
    head_max = TARGET_BYTES_MAX + HEADER_BYTES_MAX
    connection.local_settings = Settings(
        client=False,
        initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: EXCHANGES_MAX,
            SettingCodes.INITIAL_WINDOW_SIZE: EXCHANGE_WINDOW,
            SettingCodes.MAX_HEADER_LIST_SIZE: head_max,
        },
    )
    connection.decoder.max_header_list_size = head_max
    connection.initiate_connection()
    connection.increment_flow_control_window(CONNECTION_WINDOW - _FIRST_WINDOW)
    return connection


def read_head(owner: Owner, way: ExchangeSender, number: int, pairs: list[Any]) -> Exchange:
    """Return a new exchange from the head of its request."""
    pseudo: dict[bytes, bytes] = {}
    headers: Headers = []
    for name, value in pairs:
        if name.startswith(b":"):
            pseudo[bytes(name)] = bytes(value)
        else:
            headers.append((bytes(name), bytes(value)))
    if b":authority" in pseudo:
        headers.append((b"host", pseudo[b":authority"]))
    return Exchange(owner, way, number, pseudo.get(b":method", b""), pseudo.get(b":path", b""), headers)


def head_problem(exchange: Exchange) -> Reply | None:
    """Return the refusal of a request whose head is too long, or None."""
    if len(exchange.target) > TARGET_BYTES_MAX:
        message = f"the target is longer than {TARGET_BYTES_MAX} bytes"
        return refused(exchange.target, message, 414)
    size = sum(len(name) + len(value) for name, value in exchange.headers)
    if len(exchange.headers) > HEADERS_MAX or size > HEADER_BYTES_MAX:
        message = f"the headers exceed a limit: {HEADERS_MAX} headers, {HEADER_BYTES_MAX} bytes"
        return refused(exchange.target, message, 431)
    return None


def write_head(
    exchange: Exchange, status: int, content_type: bytes, headers: tuple[tuple[bytes, bytes], ...]
) -> Headers:
    """Return the head of an exchange's answer."""
    assert exchange.request is not None, "an answer needs a request"
    typed = [(b"content-type", content_type)] if content_type else []
    return [(b":status", b"%d" % status), (NAME, id_of(exchange.request)), *typed, *headers]
