"""What the agents of the demo do, and what goes wrong: a function of the number of a run, so every demo tells the same.

    plan ─┬─ search-1 ── answer ── deliver        deliver leaves an e-mail in a queue
          ├─ search-2                             every fourth run: rate limited, tried again
          └─ search-3                             every fifth run: times out twice

Poison: search-1 of every tenth run is no JSON; that of run 7 of twelve needs a browser which is down at first; the
answer of one run breaks a rule, and is given up at once.
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
    """One step of one run, by its number among all runs of a play."""

    play: str
    number: int
    name: str
    parent: str = ""

    @property
    def tenant(self) -> str:
        """Whose run it is."""
        return TENANTS[self.number % len(TENANTS)]

    @property
    def run_id(self) -> str:
        """The run."""
        return f"{self.tenant}-{self.play}-{self.number:03}"

    @property
    def is_broken(self) -> bool:
        """Does it have a body that nobody can read?"""
        return self.name == "search-1" and self.number % 10 == 3

    @property
    def breaks_a_rule(self) -> bool:
        """Is it one to give up at once?"""
        return self.name == "answer" and self.number == 5

    @property
    def needs_browser(self) -> bool:
        """Does it use the tool that is down at first?"""
        return self.name == "search-1" and self.number % 12 == 7

    def failure(self, attempt: int) -> str | None:
        """What goes wrong in an attempt, counted from 1."""
        if self.name == "search-2" and self.number % 4 == 0 and attempt == 1:
            return "the search engine says 429"
        if self.name == "search-3" and self.number % 5 == 0 and attempt <= 2:  # twice
            return "the search took too long"
        return None

    def children(self) -> list["StoryStep"]:
        """The steps that come of it."""
        return [StoryStep(self.play, self.number, name, self.name) for name in _CHILDREN.get(self.name, ())]

    def message(self) -> NewMessage:
        """The step as a message to the agents."""
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
        """What it costs, as a record."""
        tokens = 40 * len(self.name) + 7 * (self.number % 13)
        return {"tenant": self.tenant, "run": self.run_id, "step": self.name, "tokens": tokens}
