"""Connects commands to a server: its URL, the API key, and how its errors become messages and exit codes.

An API key comes from DRIFTQ_API_KEY or from a file, never from an argument, because every user of the machine can read
arguments. An error of the client ends the command as a `CommandError`, with the server's message and what to do next.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, TypeVar

import typer

from driftq.cli.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from driftq.client import ApiError, Client, ClientError

T = TypeVar("T")

_COMPLETING_S = 1.0


def complete_topic(incomplete: str) -> list[str]:
    """Return the topics whose names start with `incomplete`; an empty list if the server does not answer within 1 s."""
    from driftq.client import Client, ClientError

    try:
        with Client(timeout=_COMPLETING_S, retries=0) as client:
            return [row.topic for row in client.topics(prefix=incomplete)]
    except (ClientError, ValueError):
        return []


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="DRIFTQ_URL",
        metavar="URL",
        help="URL of the server. Default: http://127.0.0.1:4000.",
        show_default=False,
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option("--api-key-file", metavar="FILE", help="File with the API key. Default: DRIFTQ_API_KEY."),
]
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.", autocompletion=complete_topic)]

_SERVER = {"url": Url, "key_file": KeyFile}

_NEXT = {
    "topic_not_found": "`driftq topic ls` lists all topics",
    "router_not_found": "`driftq router ls` lists all routers",
    "not_a_queue": "only a topic created with `--type queue` has jobs",
    "topic_not_empty": "omit --if-empty to delete it with its records",
    "topic_full": "delete records, or raise its caps",
    "read_only": "topics of the broker are written through /v1",
}
"""What to do next, by the error code of the server."""


@contextmanager
def connected(url: str | None, key_file: Path | None) -> "Iterator[Client]":
    """Yield a client of the chosen server. Raise CommandError for every error of the client."""
    from driftq.client import ClientError

    client = client_of(url, key_file)
    try:
        with client:
            yield client
    except ClientError as error:
        raise translated(error, client.url, has_key=client.has_key) from None


def client_of(url: str | None, key_file: Path | None, **options: Any) -> "Client":
    """Return a client that has not connected yet. Raise CommandError for an invalid URL, key or certificate."""
    from driftq.client import Client

    try:
        return Client(server_url(url), api_key(key_file), **options)
    except ValueError as error:
        raise CommandError(
            f"{error}; check --url or DRIFTQ_URL, --api-key-file or DRIFTQ_API_KEY", ExitCode.USAGE
        ) from None
    except OSError as error:
        raise CommandError(
            f"a certificate cannot be used: {error}; check DRIFTQ_CA_FILE and DRIFTQ_CLIENT_CERT", ExitCode.USAGE
        ) from None


def served(function: "Callable[Concatenate[Client, ...], None]") -> Callable[..., None]:
    """Make a command from a function that takes a client: adds the options `--url` and `--api-key-file`."""
    own = list(signature(function).parameters.values())[1:]
    more = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in _SERVER.items()]

    def command(*, url: str | None = None, key_file: Path | None = None, **options: Any) -> None:
        with connected(url, key_file) as client:
            function(client, **options)

    command.__doc__ = function.__doc__
    command.__signature__ = Signature([*own, *more])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *more)}
    return command


def server_url(url: str | None) -> str | None:
    """Return the URL unchanged. Raise CommandError if it is not an HTTP URL."""
    if url is not None and not url.startswith(("http://", "https://")):
        raise CommandError(f"{url!r} is not a server URL (expected http://host:port)", ExitCode.USAGE)
    return url


def api_key(key_file: Path | None) -> str | None:
    """Return the key from the file, without surrounding whitespace; None leaves the choice to the client."""
    if key_file is None:
        return None
    try:
        key = key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise CommandError(f"cannot read the API key from {key_file}", ExitCode.USAGE) from None
    if not key:
        raise CommandError(f"the API key file {key_file} is empty", ExitCode.USAGE)
    return key


def translated(error: "ClientError", url: str, *, has_key: bool | None = None) -> CommandError:
    """Return the CommandError for a client's error.

    `has_key` is whether the client sent a key; None means that the environment decides.
    """
    from driftq.client import ApiError, TransportError

    if isinstance(error, ApiError):
        return _refused(error, url, bool(os.environ.get("DRIFTQ_API_KEY")) if has_key is None else has_key)
    if isinstance(error, TransportError):
        return CommandError(f"{error}; start a server with `driftq serve`, or pass --url", ExitCode.UNREACHABLE)
    return CommandError(f"unexpected response from {url}, which is not a DriftQ server: {error}", ExitCode.UNREACHABLE)


def _refused(error: "ApiError", url: str, has_key: bool) -> CommandError:
    if error.status == 401:
        what = "does not know this API key" if has_key else "requires an API key"
        return CommandError(f"the server at {url} {what}; set DRIFTQ_API_KEY, or pass --api-key-file", ExitCode.DENIED)
    if error.status == 403:
        return CommandError(
            f"this API key is not allowed to do this: {error.message}; use another key", ExitCode.DENIED
        )
    if error.code in ("cold_unavailable", "segment_unavailable"):
        return CommandError(error.message, ExitCode.UNREACHABLE)
    if error.status == 503:
        return CommandError(f"the server at {url} is not ready: {error.message}; try again", ExitCode.UNREACHABLE)
    if error.status == 429:
        return CommandError(f"{error.message}; try again in {error.retry_after or 1:g} s")
    absent_in_broker = error.message.startswith("topic does not exist")
    next_step = (
        "`driftq topic ls --prefix @` lists the topics of the broker" if absent_in_broker else _NEXT.get(error.code)
    )
    message = error.message if next_step is None else f"{error.message}; {next_step}"
    absent = error.status == 404 or absent_in_broker
    return CommandError(message, ExitCode.ABSENT if absent else ExitCode.FAILED)


def ask(
    client: "Client",
    method: str,
    path: str,
    answer: type[T],
    *,
    query: Mapping[str, str | int | bool | None] | None = None,
    body: object = None,
) -> T:
    """Send one request and return the decoded answer."""
    from msgspec import json

    return json.decode(client.request(method, path, query=query or {}, json=body).content, type=answer)


def fields_of(answer: Any, *without: str) -> dict[str, Any]:
    """Return the fields of an answer, without `performance` and those in `without`."""
    from msgspec import to_builtins

    facts: dict[str, Any] = to_builtins(answer)
    return {name: value for name, value in facts.items() if name not in ("performance", *without)}
