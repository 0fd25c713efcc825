"""What a process and those that write for it use, all of them together."""

import os
from pathlib import Path


def family(pid: int) -> list[int]:
    """A process and its children."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


def resident_mib(pid: int) -> float:
    """Their resident memory; what they share counts once."""
    lines = [line for one in family(pid) for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def cpu_seconds(pid: int) -> float:
    """CPU time that they have used."""
    fields = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in family(pid)]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")
