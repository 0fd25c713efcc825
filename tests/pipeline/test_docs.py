"""Every command block of the pages about the pipeline works as it is written there."""

from pathlib import Path

import pytest

from tests.acceptance.doc_blocks import pages, run_page
from tests.acceptance.process import serving
from tests.acceptance.test_docs import SPARK_PAGES


@pytest.mark.parametrize("page", sorted(SPARK_PAGES & set(pages())))
def test_every_command_of_the_page_works(page: str, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.wait_ready()
        room = tmp_path / "room"
        room.mkdir()
        wrong = run_page(page, server.address, room, DRIFTQ_PIPELINE_DIR=str(tmp_path / "runs"))
    assert not wrong, "\n\n".join(wrong)
