"""The documentation points at things that exist, and names nothing of the machine it was written on."""

import posixpath
import re

import pytest

from tests.tidy.tree import ROOT, pages, texts

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)

# In pieces, so that this file does not name what it forbids.
_REGISTRY_HOSTS = ("py" + "pi.org", "pythonhosted" + ".org", "py" + "pi.python.org", "anaconda" + ".org")
_MACHINE_PATH = re.compile(r"(?<![\w.…-])/(?:work|root|farm)/")


def _anchors(page: str) -> set[str]:
    """The anchors a renderer makes of a page's headings."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(page)}


def test_every_relative_link_resolves() -> None:
    everything = pages()
    broken = []
    for name, page in everything.items():
        for link in _LINK.findall(page):
            target, _, anchor = link.partition("#")
            if "://" in link or link.startswith("mailto:"):
                continue
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), target)) if target else name
            if not (ROOT / path).exists() or (anchor and anchor not in _anchors(everything.get(path, ""))):
                broken.append(f"{name}: {link}")
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "docs/README.md", "docs/architecture.md"])
def test_the_pages_a_newcomer_opens_are_there(name: str) -> None:
    assert len(pages()[name]) > 200


def test_every_page_can_be_reached_from_the_reading_order() -> None:
    listed = {posixpath.normpath(posixpath.join("docs", link)) for link in _LINK.findall(pages()["docs/README.md"])}
    lost = [
        name
        for name in pages()
        if name.startswith("docs/") and name != "docs/README.md" and not listed & {name, posixpath.dirname(name)}
    ]
    assert not lost, "\n".join(lost)


def test_no_registry_and_no_machine_path_in_any_file() -> None:
    found = [
        f"{name}:{number} {line.strip()[:100]}"
        for name, text in texts().items()
        if _MACHINE_PATH.search(text) or any(host in text for host in _REGISTRY_HOSTS)
        for number, line in enumerate(text.split("\n"), 1)
        if _MACHINE_PATH.search(line) or any(host in line for host in _REGISTRY_HOSTS)
    ]
    assert not found, "\n".join(found)
