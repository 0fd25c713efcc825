"""Every command block of the README and the docs works as it is written there."""

from pathlib import Path

import pytest

from tests.support.doc_blocks import SPARK_PAGES, blocks_of, pages, run_page
from tests.support.process import serving


def _pages_to_run() -> list[str]:
    return [page for page in pages() if page not in SPARK_PAGES and any(b.not_run is None for b in blocks_of(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", _pages_to_run())
def test_every_command_of_the_page_works(page: str, tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    with serving(tmp_path, "--backup-dir", str(room / "backups")) as server:
        server.wait_ready()
        wrong = run_page(page, server.address, room)
    assert not wrong, "\n\n".join(wrong)


def test_a_block_that_is_left_out_says_why() -> None:
    blocks = [block for page in pages() for block in blocks_of(page)]
    left_out = [block for block in blocks if block.not_run is not None]
    assert all(len(block.not_run or "") > 10 for block in left_out), "a reason is a sentence, not a word"
    assert len(left_out) * 5 < len(blocks), "what is left out must stay the exception"
