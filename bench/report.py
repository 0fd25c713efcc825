"""What every suite of benchmarks shares: workloads with bars, a command line, and one line of JSON for each.

A workload runs `--repeat` times, each time in a scratch directory of its own. The median counts, of the value and of
each fact; `all` and `spread` tell how far the runs were apart. The exit status is 0 when all bars were reached and 1
when one was missed. A workload that this machine cannot run is `not_measured`, with the reason, and the status is 3.
"""

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from bench.servers import scratch


class Result(NamedTuple):
    """What a workload found: its figure, and whatever else is worth knowing."""

    value: float
    facts: dict[str, float]


class Workload(NamedTuple):
    """One line of the report. Bars are on the value and on facts: more is better where `least`, else less is."""

    unit: str
    run: Callable[[str, float], Result]
    """Takes a directory and how many times as long, or as much, it is to run."""
    bar: float
    aim: float | None = None
    least: bool = True
    bars: Mapping[str, float] = {}
    """On facts, in the same direction."""
    at_most: Mapping[str, float] = {}
    """On facts of which less is better."""
    repeat: int = 3
    """How often it runs, unless the command line says."""
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot be run here."""

    def is_reached(self, result: Result) -> bool:
        """Is every bar?"""
        found = {**result.facts, "": result.value}
        bars = {**self.bars, "": self.bar}
        return all(found[name] >= bar if self.least else found[name] <= bar for name, bar in bars.items()) and all(
            found[name] <= bar for name, bar in self.at_most.items()
        )


def machine() -> dict[str, object]:
    """The facts of this machine that a figure depends on."""
    model = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version(), "system": platform.release()}


def _lines(path: str) -> Iterator[str]:
    try:
        yield from Path(path).read_text().splitlines()
    except OSError:
        return


def measure(name: str, workload: Workload, parent: str | None, scale: float, repeat: int) -> dict[str, object]:
    """Run one workload some times."""
    results = []
    for _ in range(repeat):
        with scratch(parent) as directory:
            results.append(workload.run(directory, scale))
    values = [result.value for result in results]
    facts = {fact: [result.facts[fact] for result in results] for fact in results[0].facts}
    median = Result(statistics.median(values), {fact: statistics.median(found) for fact, found in facts.items()})
    return {
        "workload": name,
        "unit": workload.unit,
        "value": round(median.value, 4),
        "all": [round(value, 4) for value in values],
        "spread": round((max(values) - min(values)) / median.value, 3) if median.value else 0.0,
        "bar": workload.bar,
        "bars": {**workload.bars, **workload.at_most},
        "aim": workload.aim,
        "reached": workload.is_reached(median),
        "facts": {fact: round(value, 4) for fact, value in median.facts.items()},
        "all_facts": {fact: [round(value, 4) for value in found] for fact, found in facts.items()},
        "machine": machine(),
    }


def report(workloads: Mapping[str, Workload], told: str | None) -> int:
    """All workloads, or those named on the command line: a line of JSON for each. Returns the exit code."""
    parser = argparse.ArgumentParser(description=told, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(workloads)}; default all")
    parser.add_argument("--dir", default=None, help="where data directories are made (default: the system's)")
    parser.add_argument("--scale", type=float, default=1.0, help="so many times as long, or as many")
    parser.add_argument("--repeat", type=int, default=None, help="runs per workload; the median counts")
    chosen = parser.parse_args()
    unknown = [name for name in chosen.workloads if name not in workloads]
    if unknown:
        parser.error(f"unknown workload {unknown[0]}; there are {', '.join(workloads)}")
    reached, measured = True, True
    for name in chosen.workloads or workloads:
        missing = workloads[name].missing()
        if missing is not None:
            line: dict[str, object] = {"workload": name, "not_measured": missing}
            measured = False
        else:
            repeat = chosen.repeat or workloads[name].repeat
            line = measure(name, workloads[name], chosen.dir, chosen.scale, repeat)
            reached = reached and bool(line["reached"])
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    if not measured:
        return 3
    return 0 if reached else 1
