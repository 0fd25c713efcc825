"""`GET /v1/runs/:run_id` (http-v1 §22): the steps of a run, and the state of each in the groups of its topic."""

from typing import Any

from driftq.errors import NotFoundError
from driftq.features.broker.group_reports import GroupStanding
from driftq.features.broker.run_index import IndexedStep, RunLetter, Trace
from driftq.http.access import Scope
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v1.params import may_name, query_of, stripped
from driftq.http.v1.replies import json_reply
from driftq.server import Server

_RANK = ("dead", "leased", "waiting", "ready", "done")
"""A step whose groups differ has the state that comes first in this list."""


class RunEndpoint:
    """The handler of `GET /v1/runs/:run_id`."""

    def __init__(self, server: Server) -> None:
        self._runs = server.runs
        self._broker = server.broker

    def routes(self) -> list[Route]:
        """Return the route of runs."""
        return [Route("GET", "/v1/runs/:run_id", self.get, Scope.READ)]

    def get(self, request: Request) -> Reply:
        """Return the steps that the key may see, in commit order."""
        run_id, tenant_id = stripped(request.params[0]), query_of(request).get("tenant_id")
        found = self._runs.find(run_id, None if tenant_id is None else stripped(tenant_id))
        steps = [] if found is None else [one for one in found.steps if may_name(request, one[0].topic)]
        if found is None or not steps:
            raise NotFoundError("no such run")
        steps.sort(key=lambda one: one[0].ts)  # after a restart the index is ordered by topic
        body: dict[str, Any] = {"run_id": run_id, "steps": [self._shown(*one) for one in steps]}
        if found.truncated:
            body["truncated"] = True
        return json_reply(200, body)

    def _shown(self, step: IndexedStep, trace: Trace) -> dict[str, Any]:
        letters = trace.letters
        found = self._broker.standings(step.topic, step.partition, step.offset)
        groups = [_ended(one, trace)._asdict() if one.state == "done" else one._asdict() for one in found]
        state = min((one["state"] for one in groups), key=_RANK.index, default="ready")
        latest = max(groups, key=lambda one: int(one["attempts"]), default={"attempts": 0, "last_error": ""})
        shown: dict[str, Any] = {
            "step_id": step.step_id,
            "parent_step_id": step.parent_step_id,
            "topic": step.topic,
            "partition": step.partition,
            "offset": step.offset,
            "ts": step.ts,
            "attempts": latest["attempts"],
            "state": state,
            "last_error": latest["last_error"],
            "groups": groups,
        }
        if letters:
            shown["dlq"] = [_letter(letter) for letter in letters]
        return shown


def _ended(done: GroupStanding, trace: Trace) -> GroupStanding:
    """Return the final state of a message that is done in a group: dead, or done with its attempts."""
    group = done.group
    dead = next((letter for letter in reversed(trace.letters) if letter.group == group), None)
    if dead is not None:
        return GroupStanding(group, dead.attempts, "dead", dead.last_error)
    return done._replace(attempts=trace.attempts.get(group, done.attempts))


def _letter(letter: RunLetter) -> dict[str, Any]:
    return {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "group": letter.group,
        "attempts": letter.attempts,
        "last_error": letter.last_error,
        "routed_at_ms": letter.routed_at_ms,
    }
