"""The command blocks of a page of documentation, run in order, as a reader would who types them one after the other.

A page is one sitting: one server, one directory, and what one `sh` block sets (`x=1`) the next one sees. Blocks in
`sh`, `console` (its lines behind `$ `) and `python` are run; all other languages are pictures. In the page's source,

    <!-- not run: reason -->     before a block leaves it out, and says why;
    <!-- prints: text -->        before a block is a word that its output must have. There may be several.

The address that the pages name is that of the default settings; it is replaced by the one of the page's own server.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.process import environment

RUN = {"sh", "console", "python"}
SPARK_PAGES = {"docs/pipeline.md", "docs/jobs.md"}
"""Pages whose blocks need Spark: tests/pipeline runs them."""
ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"(?P<notes>(?:^[ ]*<!--[^\n]*-->\n)*)^[ ]*```(?P<language>\w+)\n(?P<text>.*?)^[ ]*```$", re.M | re.S
)
_NOTE = re.compile(r"<!-- (not run|prints): (.+?) -->")
_PATIENCE_S = 240
_SHELL = """set -euo pipefail
if [ -f "$DOC_STATE" ]; then . "$DOC_STATE" 2>/dev/null || true; fi
{text}
declare -p | grep -v '^declare -[a-zA-Z]*r' >"$DOC_STATE" || true
"""


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    not_run: str | None
    prints: tuple[str, ...]


def pages() -> list[str]:
    """The pages that may have blocks: the README and everything in docs/."""
    return ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]


def blocks_of(page: str) -> list[Block]:
    """The blocks of one page that are in a language we run, in order."""
    source = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(source):
        notes = _NOTE.findall(match["notes"])
        if match["language"] in RUN:
            line = source.count("\n", 0, match.start("text"))
            reasons = [text for kind, text in notes if kind == "not run"]
            prints = tuple(text for kind, text in notes if kind == "prints")
            reason = reasons[0] if reasons else None
            found.append(Block(page, line, match["language"], match["text"], reason, prints))
    return found


def run_page(page: str, address: str, directory: Path, **variables: str) -> list[str]:
    """Run every block of a page against the server at an address; what went wrong, none if nothing."""
    settings = environment(DRIFTQ_URL=f"http://{address}", DOC_STATE=str(directory / ".state"), **variables)
    settings["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), settings["PATH"]])
    wrong = []
    for block in blocks_of(page):
        if block.not_run is None:
            wrong += _run(block, address, directory, settings)
    return wrong


def _run(block: Block, address: str, directory: Path, settings: Mapping[str, str]) -> list[str]:
    text = block.text.replace("127.0.0.1:4000", address).replace(".venv/bin/", "")
    if block.language == "console":
        text = "".join(line[2:] + "\n" for line in text.splitlines() if line.startswith("$ "))
    shell = ["bash", "-c", _SHELL.format(text=text)]
    command = [sys.executable, "-c", text] if block.language == "python" else shell
    # A file and not a pipe: what a block leaves in the background must not keep us waiting for its end of it.
    told = directory / ".told"
    with told.open("wb") as output:
        try:
            done = subprocess.run(
                command,
                cwd=directory,
                env=dict(settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_PATIENCE_S,
                check=False,
            )
            code: object = done.returncode
        except subprocess.TimeoutExpired:
            code = f"none within {_PATIENCE_S} s"
    said = told.read_text(encoding="utf-8", errors="replace")
    where = f"{block.page}:{block.line}"
    if code != 0:
        return [f"{where}: exit code {code}\n{block.text}\n{said[-4000:]}"]
    return [f"{where}: {word!r} is not in\n{said[-4000:]}" for word in block.prints if word not in said]
