"""A lake has the topics of one server."""

from pathlib import Path

import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.lake.delta_tables import Lake
from driftq.pipeline.lake.lake_owner import check_owner, claim, owner_of
from driftq.pipeline.offsets import OffsetRange, TopicOffset


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


def test_a_batch_of_another_server_is_refused_too(tmp_path: Path) -> None:
    """It may have become another while the query ran; one that could not tell at the start does so here."""
    lake = Lake(tmp_path)
    check_owner(lake, [OffsetRange("a", 1, 0, 9)])
    assert owner_of(lake) is None
    check_owner(lake, [OffsetRange("a", 1, 0, 9, "one"), OffsetRange("b", 1, 0, 9)])
    assert owner_of(lake) == "one"
    with pytest.raises(PipelineError, match="another --lake"):
        check_owner(lake, [OffsetRange("a", 1, 0, 9, "other", missed=TopicOffset(1, 9, 0, server_id="one"))])
