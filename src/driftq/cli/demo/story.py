"""Defines what the agents of the demo do and what fails. All of it follows from the number of a run, so it repeats.

    plan ─┬─ search-1 ── answer ── deliver        deliver pushes an e-mail to a queue
          ├─ search-2                             every fourth run: rate limited, retried
          └─ search-3                             every fifth run: times out twice

Poison messages: search-1 of every tenth run is not JSON. search-1 of one run in twelve (number 7) needs a browser that
is down at first. The answer of run 5 breaks a rule and is dead-lettered at once.
"""

from typing import NamedTuple

from driftq.client import Envelope, NewMessage, RetryPolicy

TENANTS = ("acme", "globex", "initech")
ATTEMPTS_MAX = 3

_CHILDREN: dict[str, tuple[str, ...]] = {
    "plan": ("search-1", "search-2", "search-3"),
    "search-1": ("answer",),
    "answer": ("deliver",),
}
_POLICY = RetryPolicy(max_attempts=ATTEMPTS_MAX, backoff_ms=50, max_backoff_ms=200)


class StoryStep(NamedTuple):
    """One step of one run. `number` counts the runs of one play."""

    play: str
    number: int
    name: str
    parent: str = ""

    @property
    def tenant(self) -> str:
        """Return the tenant that the run belongs to."""
        return TENANTS[self.number % len(TENANTS)]

    @property
    def run_id(self) -> str:
        """Return the id of the run: tenant, play and number."""
        return f"{self.tenant}-{self.play}-{self.number:03}"

    @property
    def is_broken(self) -> bool:
        """Whether the message body is not valid JSON."""
        return self.name == "search-1" and self.number % 10 == 3

    @property
    def breaks_a_rule(self) -> bool:
        """Whether the agent dead-letters the step at once."""
        return self.name == "answer" and self.number == 5

    @property
    def needs_browser(self) -> bool:
        """Whether the step needs the browser, which is down at first."""
        return self.name == "search-1" and self.number % 12 == 7

    def failure(self, attempt: int) -> str | None:
        """Return the error of an attempt (the first is 1), or None if it succeeds."""
        if self.name == "search-2" and self.number % 4 == 0 and attempt == 1:
            return "the search engine returned 429"
        if self.name == "search-3" and self.number % 5 == 0 and attempt <= 2:  # the first two attempts
            return "the search took too long"
        return None

    def children(self) -> list["StoryStep"]:
        """Return the steps that follow when this one is done."""
        return [StoryStep(self.play, self.number, name, self.name) for name in _CHILDREN.get(self.name, ())]

    def message(self) -> NewMessage:
        """Return the step as a message to the agents."""
        value = "{no JSON" if self.is_broken else {"run": self.number, "step": self.name, "play": self.play}
        return NewMessage(
            value,
            key=self.run_id,
            envelope=Envelope(
                run_id=self.run_id,
                step_id=self.name,
                parent_step_id=self.parent,
                tenant_id=self.tenant,
                idempotency_key=f"{self.run_id}/{self.name}",
                retry_policy=_POLICY,
            ),
        )

    def usage(self) -> dict[str, object]:
        """Return a record of the tokens that the step used."""
        tokens = 40 * len(self.name) + 7 * (self.number % 13)
        return {"tenant": self.tenant, "run": self.run_id, "step": self.name, "tokens": tokens}
