"""The demo's router hook (http-v1 §14): it labels each step of an agent with its kind.

The demo's server loads it with `--router driftq.cli.demo.step_labels:Labels`.
"""

from driftq.model.message import Message, RoutingDecision

_MODELS = {"plan": "large", "answer": "large", "search": "small"}


class Labels:
    """Router hook that labels messages with the kind of step and the model it needs."""

    async def route(self, topic: str, message: Message) -> RoutingDecision | None:
        """Return the label, which is the first part of the step id, or None for a message without a step."""
        step = message.envelope.step_id if message.envelope is not None else ""
        if not step:
            return None
        kind = step.partition("-")[0]
        return RoutingDecision(label=kind, meta={"model": _MODELS.get(kind, "none")})
