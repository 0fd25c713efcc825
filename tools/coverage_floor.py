"""Compare measured coverage with its floors: `coverage_floor.py REPORT FLOORS [--raise]`, called by `.ci/coverage`.

A floor is a share in percent of the lines and branches of all files whose path starts with its name. `--raise` writes
the measured shares, less 0.3 for differences between machines, into the file where that is more; no floor falls.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

_MARGIN = 0.3


def share(report: dict[str, Any], prefix: str) -> float:
    """Return the covered percentage of lines and branches of the files whose path starts with `prefix`."""
    of = [file["summary"] for path, file in report["files"].items() if path.startswith(prefix)]
    if not (total := sum(one["num_statements"] + one["num_branches"] for one in of)):
        raise SystemExit(f"coverage: no file was measured that starts with {prefix}; correct .ci/coverage.json")
    return 100 * sum(one["covered_lines"] + one["covered_branches"] for one in of) / total


def main(report_file: str, floors_file: str, *options: str) -> int:
    """Print one line per floor; return 1 if a share is below its floor, else 0."""
    report = json.loads(Path(report_file).read_text(encoding="utf-8"))
    floors: dict[str, float] = json.loads(Path(floors_file).read_text(encoding="utf-8"))
    below = 0
    for prefix, floor in floors.items():
        measured = share(report, prefix)
        below += measured < floor
        verdict = "below the floor: write the missing tests" if measured < floor else "ok"
        sys.stdout.write(f"{prefix:40} {measured:6.2f} % (floor {floor} %) {verdict}\n")
        floors[prefix] = max(floor, math.floor(10 * (measured - _MARGIN)) / 10)
    if "--raise" in options:
        Path(floors_file).write_text(json.dumps(floors, indent=2) + "\n", encoding="utf-8")
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
