"""A supervisor as small as one can be: it starts a command again whenever that fails, and writes down each exit code.

python supervisor.py CODES_FILE COMMAND...
"""

import subprocess
import sys


def main(codes: str, *command: str) -> None:
    """Run the command until it exits with 0."""
    code = -1
    while code:
        code = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
        with open(codes, "a", encoding="ascii") as file:
            file.write(f"{code}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
