"""The demo's router hook (http-v1 §14): it labels every step of an agent with what kind of step it is.

Loaded by the demo's server as `--router driftq.cli.demo.step_labels:Labels`.
"""

from driftq.model.message import Message, RoutingDecision

_MODELS = {"plan": "large", "answer": "large", "search": "small"}


class Labels:
    """Says what kind of step a message is, and which model it wants."""

    async def route(self, topic: str, message: Message) -> RoutingDecision | None:
        """The kind of a step is the first part of its id; a message that is no step is not labelled."""
        step = message.envelope.step_id if message.envelope is not None else ""
        if not step:
            return None
        kind = step.partition("-")[0]
        return RoutingDecision(label=kind, meta={"model": _MODELS.get(kind, "none")})
