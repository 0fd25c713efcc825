"""Builds an OpenAPI 3.1 document from operations; their schemas come from the structs that decode the requests.

This module adds what operations share: the need for a key, and the common errors. `http/openapi/v0_operations` and
`v1_operations` list the operations themselves.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.json import schema_components

_JSON = "application/json"
_COLON = re.compile(r":(\w+)")

_PHRASES = {
    200: "The call succeeded.",
    201: "Success; this call created the resource.",
    202: "Accepted; the work has started.",
    204: "Success, without a body.",
    101: "The connection becomes a WebSocket.",
    400: "The request is not valid.",
    401: "The API key is missing or unknown.",
    403: "The API key is not allowed to do this, or not with this name.",
    404: "The resource does not exist, and this call does not create it.",
    406: "The caller does not accept event streams.",
    409: "The request conflicts with the state of the resource.",
    413: "The body is too large.",
    415: "The content type or encoding of the body is not supported.",
    422: "The topic is full and rejects new records.",
    429: "A limit is reached, or the server is overloaded; retry after `Retry-After` seconds.",
    500: "A commit failed, or there was an internal error; the request has no visible effect.",
    503: "The server is starting or stopping, or records cannot be read now; retry after `Retry-After` seconds.",
    507: "The disk is full, and nothing of the request was stored; retry after `Retry-After` seconds.",
}


class ErrorEnvelope(Struct, frozen=True):
    """The body of every answer that reports an error."""

    error: "Error"


class Error(Struct, frozen=True, omit_defaults=True):
    """What went wrong: a stable code, a message, and details."""

    code: str
    message: str
    detail: dict[str, object] = {}


class Operation(Struct, frozen=True, kw_only=True):
    """One HTTP method of one path."""

    summary: str
    reply: object = None
    """Type of the JSON body of a success."""
    statuses: tuple[int, ...] = (200,)
    errors: tuple[int, ...] = ()
    """Error statuses beyond those that every operation has."""
    body: object = None
    body_required: bool = True
    query: Mapping[str, object] = {}
    required_query: frozenset[str] = frozenset()
    headers: Mapping[str, object] = {}
    other_media: Mapping[str, str] = {}
    """Other media types of a success, with a description."""
    open: bool = False
    """Whether the operation needs no key."""
    always: bool = False
    """Whether the operation is answered in every state of the server."""
    error: object = ErrorEnvelope
    """Type of the JSON body of an error."""


def document(operations: Mapping[tuple[str, str], Operation], *, title: str, version: str) -> dict[str, Any]:
    """Return the whole OpenAPI document."""
    shapes = _shapes(operations.values())
    schemas, components = schema_components(
        shapes, schema_hook=_schema_of_anything, ref_template="#/components/schemas/{name}"
    )
    refs = dict(zip(map(str, shapes), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in operations.items():
        paths.setdefault(_COLON.sub(r"{\1}", path), {})[method.lower()] = _operation(method, path, operation, refs)
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}, {}],
    }


def _schema_of_anything(kind: type) -> dict[str, Any]:
    """Return a schema for `object`: fields that a handler checks itself, such as a match."""
    if kind is object:
        return {"description": "Any JSON."}
    raise NotImplementedError  # msgspec's convention for a type that the hook does not know


def _shapes(operations: Iterable[Operation]) -> list[Any]:
    found: dict[str, Any] = {}
    for operation in operations:
        for shape in (
            operation.error,
            operation.reply,
            operation.body,
            *operation.query.values(),
            *operation.headers.values(),
        ):
            if shape is not None:
                found[str(shape)] = shape
    return list(found.values())


def _operation(method: str, path: str, operation: Operation, refs: Mapping[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": _operation_id(method, path),
        "parameters": _parameters(path, operation, refs),
        "responses": _responses(operation, refs, takes_body=operation.body is not None),
    }
    if operation.open:
        described["security"] = []
    if operation.body is not None:
        described["requestBody"] = {
            "required": operation.body_required,
            "content": {_JSON: {"schema": refs[str(operation.body)]}},
        }
    return described


def _operation_id(method: str, path: str) -> str:
    words = [part.removeprefix(":") for part in path.split("/") if part and part != "v0"]
    return "_".join([method.lower(), *words])


def _parameters(path: str, operation: Operation, refs: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _COLON.findall(path)
    ]
    found += [
        {"name": name, "in": "query", "required": name in operation.required_query, "schema": refs[str(shape)]}
        for name, shape in operation.query.items()
    ]
    found += [
        {"name": name, "in": "header", "required": False, "schema": refs[str(shape)]}
        for name, shape in operation.headers.items()
    ]
    return found


def _responses(operation: Operation, refs: Mapping[str, Any], *, takes_body: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status in operation.statuses:
        content: dict[str, Any] = {media: {"schema": {"type": "string"}} for media in operation.other_media}
        if operation.reply is not None:
            content[_JSON] = {"schema": refs[str(operation.reply)]}
        found[str(status)] = {"description": _PHRASES[status], **({"content": content} if content else {})}
    errors = {*operation.errors}
    if not operation.open:
        errors |= {401, 403, 429, 500}
    if not operation.always:
        errors |= {503}
    if takes_body:
        errors |= {400, 413, 415}
    envelope = {_JSON: {"schema": refs[str(operation.error)]}}
    for status in sorted(errors):
        found[str(status)] = {"description": _PHRASES[status], "content": envelope}
    return found
