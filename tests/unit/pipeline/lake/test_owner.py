"""A lake has the topics of one server."""

from pathlib import Path

import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.lake.lake import Lake
from driftq.pipeline.lake.owner import claim, owner_of


def test_a_lake_is_that_of_the_first_server_that_wrote_there(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    claim(lake, None)
    assert owner_of(lake) is None
    for _ in range(2):
        claim(lake, "one")
    assert owner_of(lake) == "one"
    assert [path.name for path in lake.root.iterdir()] == ["driftq-lake.json"]


@pytest.mark.parametrize("server", ["other", None])
def test_another_server_is_refused_and_so_is_one_that_cannot_tell(tmp_path: Path, server: str | None) -> None:
    lake = Lake(tmp_path)
    claim(lake, "one")
    with pytest.raises(PipelineError, match=r"server one.*another --lake"):
        claim(lake, server)
    assert owner_of(lake) == "one"
