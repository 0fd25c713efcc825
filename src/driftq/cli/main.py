"""Entry point of `driftq`. Commands are imported when they run, so that no command waits for another's imports."""

import os
import sys


def main() -> None:
    """Run the command that the arguments name, and exit with its code."""
    _open_streams()
    if sys.argv[1:2] == ["serve"] and "_DRIFTQ_COMPLETE" not in os.environ:
        from driftq.cli.server.serve import run_server
        from driftq.cli.server.serve_flags import parse_flags

        sys.exit(run_server(parse_flags(sys.argv[2:])))
    from driftq.cli.commands import make_app
    from driftq.cli.lazy_groups import run

    sys.exit(run(make_app(completing="_DRIFTQ_COMPLETE" in os.environ), sys.argv[1:]))


def _open_streams() -> None:
    """Replace standard streams that were closed before the start (Python sets them to None) by /dev/null."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # stays open until the process ends
