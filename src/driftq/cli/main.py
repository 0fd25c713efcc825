"""The commands of `driftq`. What a command needs is imported when it runs, so that none waits for another's imports."""

import sys


def main() -> None:
    """Run the command that was asked for."""
    if sys.argv[1:2] == ["serve"]:
        from driftq.cli.options import parse_flags
        from driftq.cli.serve import run_server

        sys.exit(run_server(parse_flags(sys.argv[2:])))
    from driftq.cli.commands import app

    app(prog_name="driftq")
