"""`driftq router`: list, draw, create and delete routers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.lazy_groups import group
from driftq.cli.output import Json, Yes, confirm, draw, note, show, show_rows
from driftq.cli.server_access import fields_of, served
from driftq.model.router_spec import Guarantee
from driftq.model.v0_answers import RouterRow

if TYPE_CHECKING:
    from rich.tree import Tree

    from driftq.client import Client

router = group("Routers: list, draw, create and delete them.")

_ROW = ("router", "source", "dest", "guarantee", "forwarded_total")

Name = Annotated[str, typer.Argument(metavar="ROUTER", help="Name of the router.")]


@router.command("ls")
@served
def ls(
    client: "Client",
    *,
    prefix: Annotated[str | None, typer.Option(help="Only names that start with this.")] = None,
    source: Annotated[str | None, typer.Option(help="Only routers from this topic.")] = None,
    dest: Annotated[str | None, typer.Option(help="Only routers to this topic.")] = None,
    as_json: Json = False,
) -> None:
    """List the routers, with source, destination and guarantee."""
    rows = [fields_of(row) for row in client.routers(prefix=prefix, source=source, dest=dest)]
    show_rows(rows, _ROW, as_json=as_json)


@router.command("graph")
@served
def graph(
    client: "Client",
    topic: Annotated[str | None, typer.Argument(help="Draw only this topic and what its records flow to.")] = None,
    *,
    as_json: Json = False,
) -> None:
    """Draw the flow of records: each topic with the topics its records are copied to below it."""
    rows = list(client.routers())
    if as_json:
        show_rows([fields_of(row) for row in rows], _ROW, as_json=True)
        return
    trees = draw_graph(rows, topic)
    if not trees:
        note("nothing to show")
    for tree in trees:
        draw(tree)


def draw_graph(rows: Sequence[RouterRow], only: str | None = None) -> "list[Tree]":
    """Return a tree for each topic that no router copies to, and for each cycle one that starts anywhere in it."""
    from rich.tree import Tree

    flows: dict[str, list[RouterRow]] = {}
    for row in rows:
        flows.setdefault(row.source, []).append(row)
    fed = {row.dest for row in rows}
    roots = [only] if only is not None else [source for source in flows if source not in fed]
    drawn: set[str] = set()
    trees = []
    for root in roots + ([] if only is not None else list(flows)):
        if root in drawn:
            continue
        tree = Tree(f"[bold]{root}[/]")
        _grow(tree, root, flows, drawn, ())
        if root in flows:
            trees.append(tree)
    return trees


def _grow(tree: "Tree", topic: str, flows: dict[str, list[RouterRow]], drawn: set[str], above: tuple[str, ...]) -> None:
    drawn.add(topic)
    for row in flows.get(topic, []):
        once = "  exactly_once" if row.guarantee is Guarantee.EXACTLY_ONCE else ""
        back = "  (cycle)" if row.dest in (*above, topic) else ""
        branch = tree.add(f"[bold]{row.dest}[/]  {row.router}{once}  forwarded_total {row.forwarded_total}{back}")
        if not back:
            _grow(branch, row.dest, flows, drawn, (*above, topic))


@router.command("create")
@served
def create(
    client: "Client",
    name: Name,
    source: Annotated[str, typer.Argument(help="Topic whose records are copied.")],
    dest: Annotated[str, typer.Argument(help="Topic that gets the copies; created if missing.")],
    *,
    tag: Annotated[
        str | None, typer.Option(help="Only records with this tag; `a*` matches tags that start with a.")
    ] = None,
    exactly_once: Annotated[
        bool, typer.Option("--exactly-once", help="Never copy a record twice, even after a crash.")
    ] = False,
    allow_cycle: Annotated[
        bool, typer.Option("--allow-cycle", help="Create the router even if it closes a cycle.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a router, or replace its settings. It copies records that are written from now on."""
    guarantee = Guarantee.EXACTLY_ONCE if exactly_once else Guarantee.AT_LEAST_ONCE
    chosen = None if tag is None else ("tag", "Glob" if tag.endswith("*") else "Eq", tag)
    answer = client.put_router(name, source, dest, filter=chosen, guarantee=guarantee, allow_cycle=allow_cycle)
    show(fields_of(answer), as_json=as_json)


@router.command("delete")
@served
def delete(client: "Client", name: Name, *, yes: Yes = False, as_json: Json = False) -> None:
    """Delete a router. The copies it made are kept."""
    confirm(f"Delete router {name}?", yes=yes)
    answer = client.delete_router(name)
    if not answer.deleted:
        raise CommandError(f"router {name} does not exist; `driftq router ls` lists all routers", ExitCode.ABSENT)
    show(fields_of(answer), as_json=as_json)
