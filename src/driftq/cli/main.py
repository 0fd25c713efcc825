"""The commands of `driftq`. What a command needs is imported when it runs, so that none waits for another's imports."""

import os
import sys


def main() -> None:
    """Run the command that was asked for."""
    _open_streams()
    if sys.argv[1:2] == ["serve"] and "_DRIFTQ_COMPLETE" not in os.environ:
        from driftq.cli.server.serve import run_server
        from driftq.cli.server.serve_flags import parse_flags

        sys.exit(run_server(parse_flags(sys.argv[2:])))
    from driftq.cli.commands import make_app
    from driftq.cli.lazy_groups import run

    sys.exit(run(make_app(completing="_DRIFTQ_COMPLETE" in os.environ), sys.argv[1:]))


def _open_streams() -> None:
    """A stream that was closed by whoever started us leads nowhere; Python has none in its place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # as long as the process lives
