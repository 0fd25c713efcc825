"""`driftq run`: show the steps of a run as a tree."""

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import to_builtins

from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.lazy_groups import group
from driftq.cli.output import Json, draw, note, readable, show
from driftq.cli.server_access import ask, served
from driftq.model.v1_answers import RunStep, RunSteps

if TYPE_CHECKING:
    from rich.tree import Tree

    from driftq.client import Client

run = group("Runs: show the steps of a run and their states.")

_STYLES = {"done": "green", "dead": "red", "leased": "cyan", "waiting": "yellow", "ready": ""}


@run.command("show")
@served
def show_run(
    client: "Client",
    run_id: Annotated[str, typer.Argument(help="The id of the run.")],
    *,
    tenant: Annotated[str | None, typer.Option(help="Only the steps of this tenant.")] = None,
    as_json: Json = False,
) -> None:
    """Show the steps of a run, each below the step that it came from."""
    from driftq.client import NotFoundError
    from driftq.client.transport.calls import path_of

    try:
        found = ask(client, "GET", path_of("v1", "runs", run_id), RunSteps, query={"tenant_id": tenant})
    except NotFoundError:
        raise CommandError(f"run {run_id} is not among the newest runs; check the id", ExitCode.ABSENT) from None
    if as_json:
        show(to_builtins(found), as_json=True)
        return
    draw(tree_of(found))
    if found.truncated:
        note("the index no longer has older steps of this run; the lineage tables of the pipeline have all of them")


def tree_of(found: RunSteps) -> "Tree":
    """Return the steps as a tree, each below its parent; a step whose parent is unknown is at the top."""
    from rich.tree import Tree

    tree = Tree(f"run_id {found.run_id}")
    branches: dict[str, Tree] = {}
    waiting: dict[str, list[RunStep]] = {}
    known = {step.step_id for step in found.steps}
    for step in found.steps:
        own = not step.parent_step_id or step.parent_step_id == step.step_id
        parent = "" if own or step.parent_step_id not in known else step.parent_step_id
        if parent and parent not in branches:
            waiting.setdefault(parent, []).append(step)
            continue
        _grow(tree, branches, waiting, parent, step)
    for steps in list(waiting.values()):  # steps that are each other's parents
        for step in steps:
            _grow(tree, branches, {}, "", step)
    return tree


def _grow(
    tree: "Tree", branches: "dict[str, Tree]", waiting: dict[str, list[RunStep]], parent: str, step: RunStep
) -> None:
    """Add a step, and the steps that waited for it as their parent."""
    todo = [(parent, step)]
    while todo:
        above, step = todo.pop(0)
        branch = branches.get(above, tree).add(_line(step))
        for line in _below(step):
            branch.add(line)
        if step.step_id:
            branches.setdefault(step.step_id, branch)
            todo += [(step.step_id, child) for child in waiting.pop(step.step_id, [])]


def _line(step: RunStep) -> "str":
    from rich.markup import escape

    style = _STYLES[step.state]
    state = f"[{style}]{step.state}[/]" if style else step.state
    facts = [f"[bold]{escape(step.step_id or '-')}[/]", state, f"topic {escape(step.topic)}"]
    facts += [f"partition {step.partition}", f"offset {step.offset}", f"ts {readable('ts', step.ts)}"]
    facts.append(f"attempts {step.attempts}")
    facts += [f"last_error {escape(step.last_error)}"] if step.last_error else []
    return "  ".join(facts)


def _below(step: RunStep) -> list[str]:
    """Return extra lines: one per group if there are several, and one per dead letter."""
    from rich.markup import escape

    lines = []
    if len(step.groups) > 1:
        lines += [f"group {escape(one.group)}  {one.state}  attempts {one.attempts}" for one in step.groups]
    lines += [f"[red]dlq[/] {escape(readable('dlq', letter))}" for letter in step.dlq]
    return lines
