"""A router that is called over HTTP: `--router-url` (http-v1 §14, §16).

    POST {"topic", "message": {"key", "value", "envelope"?}}
    200 {"label"?, "target_topic"?, "partition_override"?, "meta"?}, or 204: no decision

Every other status, and every body that is not a decision, is an error of the router.
"""

from msgspec import DecodeError, Struct, ValidationError, json

from driftq.model.message import Envelope, Message, RoutingDecision
from driftq.system.http_client.json_post import Poster


class WebhookError(Exception):
    """Raised when the URL did not answer with a decision."""


class _Shown(Struct, frozen=True, omit_defaults=True):
    key: str
    value: str
    envelope: Envelope | None = None


class _Asked(Struct, frozen=True):
    topic: str
    message: _Shown


class _Decision(Struct, frozen=True):
    label: str | None = None
    target_topic: str | None = None
    partition_override: int | None = None
    meta: dict[str, str] | None = None


_answer = json.Decoder(_Decision)


class WebhookRouter:
    """Asks a URL for each decision. Raise ValueError if the URL is not valid."""

    def __init__(self, url: str) -> None:
        self._poster = Poster(url)

    async def route(self, topic: str, message: Message) -> RoutingDecision | None:
        """Ask the URL for a decision. Raise PostError or WebhookError."""
        asked = _Asked(topic, _Shown(message.key, message.value, message.envelope))
        status, body = await self._poster.post(json.encode(asked))
        if status == 204:
            return None
        if status != 200:
            raise WebhookError(f"the router URL answered with status {status}")
        try:
            found = _answer.decode(body)
        except (DecodeError, ValidationError) as error:
            raise WebhookError(f"the router URL answered without a decision: {error}") from None
        return RoutingDecision(
            found.label or "", found.target_topic or "", found.partition_override, dict(found.meta or {})
        )

    def close(self) -> None:
        """Close the connections of the router."""
        self._poster.close()
