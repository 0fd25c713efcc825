"""The commands of `driftq`. What a command needs is imported when it runs, so that none waits for another's imports."""

import sys

EXIT_CODES = "Exit codes: 0 all is well, 1 refused or failed (one line on standard error says why), 2 wrong usage."


def main() -> None:
    """Run the command that was asked for."""
    if sys.argv[1:2] == ["serve"]:
        from driftq.cli.options import parse_flags
        from driftq.cli.serve import run_server

        sys.exit(run_server(parse_flags(sys.argv[2:], EXIT_CODES)))
    from driftq.cli.commands import app

    app(prog_name="driftq")
