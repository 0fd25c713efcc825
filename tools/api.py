"""Writes docs/api.md from the operations that the server itself describes: `make docs`.

The page has no fact of its own. A test makes it anew and compares.
"""

import sys
from pathlib import Path
from typing import Any

from driftq import __version__
from driftq.http.openapi.document import document
from driftq.http.openapi.v0_operations import OPERATIONS
from driftq.http.openapi.v1_operations import OPERATIONS as BROKER_OPERATIONS

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
_HEAD = """# The API

Every operation of both dialects, generated from the shapes that decode the requests. A running server serves the same
as OpenAPI 3.1 at `/openapi.json`. A field with `?` may be left out. What the operations mean is in
[concepts.md](concepts.md) and [broker.md](broker.md).

Every refusal has the same body: `{"error": {"code", "message", "detail"}}` on `/v0`, `{"error", "message"}` on `/v1`.
Where keys are set, send `Authorization: Bearer <key>`.
"""
_FAMILIES = [("/v0", "Records, queues and streams: `/v0`"), ("/v1", "The broker: `/v1`"), ("/", "Beside them")]


def render() -> str:
    """The whole page."""
    described = document(OPERATIONS | BROKER_OPERATIONS, title="DriftQ", version=__version__)
    shapes = described["components"]["schemas"]
    parts = [_HEAD]
    left = dict(described["paths"])
    for prefix, title in _FAMILIES:
        mine = {path: left.pop(path) for path in list(left) if path.startswith(prefix)}
        if mine:
            parts.append(f"## {title}\n")
            for path, methods in mine.items():
                parts += [_operation(method, path, found, shapes) for method, found in methods.items()]
    return "\n".join(parts)


def _operation(method: str, path: str, found: dict[str, Any], shapes: dict[str, Any]) -> str:
    lines = [f"### `{method.upper()} {path}`", "", found["summary"], ""]
    for place, title in (("query", "query"), ("header", "headers")):
        named = [_parameter(p, shapes) for p in found["parameters"] if p["in"] == place]
        if named:
            lines.append(f"- {title}: {', '.join(named)}")
    body = found.get("requestBody")
    if body is not None:
        optional = "" if body["required"] else " (may be left out)"
        lines.append(f"- body{optional}: {_shape(_json(body), shapes)}")
    answers: dict[str, list[str]] = {}
    for status, answer in found["responses"].items():
        if int(status) < 400:
            media = [f"`{kind}`" for kind in answer.get("content", {}) if kind != "application/json"]
            shown = [_shape(_json(answer), shapes)] if _json(answer) is not None else []
            answers.setdefault(" or ".join(shown + media) or "no body", []).append(status)
    lines += [f"- {', '.join(statuses)}: {text}" for text, statuses in answers.items()]
    refusals = [status for status in found["responses"] if int(status) >= 400]
    if refusals:
        lines.append(f"- refusals: {', '.join(refusals)}")
    return "\n".join(lines) + "\n"


def _json(holder: dict[str, Any]) -> Any:
    return holder.get("content", {}).get("application/json", {}).get("schema")


def _parameter(parameter: dict[str, Any], shapes: dict[str, Any]) -> str:
    mark = "" if parameter["required"] else "?"
    return f"`{parameter['name']}{mark}` {_kind(parameter['schema'], shapes)}"


def _shape(schema: Any, shapes: dict[str, Any]) -> str:
    resolved = _resolved(schema, shapes)
    if "properties" not in resolved:
        return _kind(schema, shapes)
    required = set(resolved.get("required", ()))
    fields = [
        f"`{name}{'' if name in required else '?'}` {_kind(kind, shapes)}"
        for name, kind in resolved["properties"].items()
    ]
    return ", ".join(fields) or "an empty object"


def _resolved(schema: dict[str, Any], shapes: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = shapes[schema["$ref"].rsplit("/", 1)[1]]
    return schema


def _kind(schema: dict[str, Any], shapes: dict[str, Any]) -> str:
    """A type in a word or two; the fields of an inner object in braces."""
    resolved = _resolved(schema, shapes)
    choices = resolved.get("anyOf") or resolved.get("oneOf")
    if choices is not None:
        return " or ".join(dict.fromkeys(_kind(choice, shapes) for choice in choices))
    if "enum" in resolved:
        return " or ".join(f"`{value}`" for value in resolved["enum"])
    kind = resolved.get("type")
    if kind == "array":
        inner = resolved.get("items")
        return f"list of {_kind(inner, shapes)}" if isinstance(inner, dict) and inner else "list"
    if kind == "object":
        names = [
            name if name in resolved.get("required", ()) else f"{name}?" for name in resolved.get("properties", {})
        ]
        return f"{{{', '.join(names)}}}" if names else "object"
    return str(kind) if kind is not None else "any JSON"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}: {render().count('### ')} operations\n")
