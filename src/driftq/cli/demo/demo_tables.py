"""Builds the tables that the demo shows. All figures are read from the server."""

from collections import Counter
from collections.abc import Iterable

from driftq.cli.demo.story import TENANTS
from driftq.cli.demo.workload import MAILS, STEPS, TENANT_USAGE, USAGE, Played
from driftq.client import Client, StoredMessage
from driftq.model.names import broker_topic
from driftq.model.tombstone import Tombstone
from driftq.model.v1_answers import RunSteps

Rows = list[dict[str, object]]
Tables = dict[str, Rows]

TOPICS = (broker_topic(STEPS), broker_topic(f"dlq.{STEPS}"), USAGE, *TENANT_USAGE, MAILS)
"""Every topic of the demo, by the names that /v0 and the pipeline use."""


def tables_of(client: Client, played: Played) -> Tables:
    """Return the tables by title: tenants, one run, labels, dead letters, topics."""
    runs = {run_id: client.broker.runs(run_id) for run_id in played.run_ids()}
    return {
        "tenants": _tenants(client, runs),
        "one run, step by step": _steps(_most_eventful(runs.values())),
        "labels that the router hook gave": _labels(client, runs),
        "dead letters": _letters(client, runs),
        "topics": [_topic(client, name) for name in TOPICS],
    }


def _tenants(client: Client, runs: dict[str, RunSteps]) -> Rows:
    tokens = _tokens(client, runs)
    rows: Rows = []
    for tenant in TENANTS:
        own = [run for run_id, run in runs.items() if run_id.startswith(f"{tenant}-")]
        rows.append(
            {
                "tenant": tenant,
                "runs": len(own),
                "steps": sum(len(run.steps) for run in own),
                "retries": sum(max(0, step.attempts - 1) for run in own for step in run.steps),
                "dead": sum(step.state == "dead" for run in own for step in run.steps),
                "tokens": tokens[tenant],
            }
        )
    return rows


def _tokens(client: Client, runs: dict[str, RunSteps]) -> Counter[str]:
    """Count the tokens of each tenant, from the topics that the routers filled."""
    tokens: Counter[str] = Counter()
    for tenant, name in zip(TENANTS, TENANT_USAGE, strict=True):
        for record in client.topic(name).read():
            if not isinstance(record, Tombstone) and record.data["run"] in runs:
                tokens[tenant] += record.data["tokens"]
    return tokens


def _most_eventful(runs: Iterable[RunSteps]) -> RunSteps:
    return max(runs, key=lambda run: (len(run.steps), sum(step.attempts for step in run.steps)))


def _steps(run: RunSteps) -> Rows:
    return [
        {
            "run": run.run_id,
            "step": step.step_id,
            "after": step.parent_step_id or None,
            "state": step.state,
            "attempts": step.attempts,
            "last_error": step.last_error or None,
        }
        for step in run.steps
    ]


def _labels(client: Client, runs: dict[str, RunSteps]) -> Rows:
    counts: Counter[tuple[str, str]] = Counter()
    for stored in client.broker.messages(STEPS):
        if isinstance(stored, StoredMessage) and _of(stored, runs):
            routing = stored.message.routing
            counts["" if routing is None else routing.label, "" if routing is None else routing.meta["model"]] += 1
    return [{"label": label, "model": model, "messages": count} for (label, model), count in sorted(counts.items())]


def _letters(client: Client, runs: dict[str, RunSteps]) -> Rows:
    rows: Rows = []
    for stored in client.broker.dlq(STEPS):
        if not isinstance(stored, StoredMessage) or not _of(stored, runs):
            continue
        envelope = stored.message.envelope
        assert envelope is not None
        assert envelope.dlq is not None
        rows.append(
            {
                "tenant": envelope.tenant_id,
                "run": envelope.run_id,
                "step": envelope.step_id,
                "attempts": envelope.dlq.attempts,
                "reason": envelope.dlq.last_error,
                "redriven": _came_good(runs[envelope.run_id], envelope.step_id),
            }
        )
    return rows


def _came_good(run: RunSteps, step_id: str) -> bool:
    """Whether a step was done in the end."""
    return any(step.step_id == step_id and step.state == "done" for step in run.steps)


def _of(stored: StoredMessage, runs: dict[str, RunSteps]) -> bool:
    return stored.message.envelope is not None and stored.message.envelope.run_id in runs


def _topic(client: Client, name: str) -> dict[str, object]:
    found = client.topic(name).info()
    return {
        "topic": name,
        "type": found.type,
        "durability": found.config.resolved_durability,
        "records": found.count,
        "bytes": found.bytes,
    }
