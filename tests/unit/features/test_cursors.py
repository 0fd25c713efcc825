"""Named cursors: forwards unless asked otherwise, decided where they are applied, kept over crashes once synced."""

from typing import Any

import pytest

from driftq.errors import EpochMismatchError, InvalidRequestError, NotFoundError, ThrottledError, TopicNotFoundError
from driftq.features.cursors import NamedCursors, Put
from driftq.model.limits import CURSORS_MAX
from driftq.testing import CrashMode, EngineRig


class _Rig(EngineRig):
    def __init__(self) -> None:
        super().__init__(features=lambda: (NamedCursors(),))

    def start(self) -> None:
        super().start()
        self.cursors.bind(self.engine)

    @property
    def cursors(self) -> NamedCursors:
        (found,) = self.features
        assert isinstance(found, NamedCursors)
        return found

    def move(self, cursor: str, seq: int, **options: Any) -> Put:
        return self.run(self.cursors.put("a", cursor, seq, **options))

    def stand(self, name: str = "a") -> dict[str, int]:
        return {cursor: found.seq for cursor, found in self.cursors.all(name).items()}


@pytest.fixture
def rig() -> _Rig:
    rig = _Rig()
    rig.put("a")
    rig.write("a", 1, 2, 3)
    return rig


def test_a_cursor_moves_forwards_and_back_only_when_asked_to(rig: _Rig) -> None:
    asked = ((2, False), (2, False), (1, False), (1, True))
    assert [rig.move("c", seq, rewind=rewind).moved for seq, rewind in asked] == [True, False, False, True]
    assert rig.cursors.get("a", "c").seq == 1


def test_a_lower_seq_answers_with_what_is_stored(rig: _Rig) -> None:
    rig.move("c", 3, meta={"k": "v"})
    answer = rig.move("c", 1, meta={"k": "other"})
    assert (answer.moved, answer.cursor.seq, answer.cursor.meta) == (False, 3, {"k": "v"})


def test_a_meta_stays_until_another_is_given(rig: _Rig) -> None:
    rig.move("c", 1, meta={"k": "v"})
    assert rig.move("c", 2).cursor.meta == {"k": "v"}
    same = rig.move("c", 2, meta={"k": "w"})
    assert (same.moved, same.cursor.meta) == (False, {"k": "w"})


def test_of_many_puts_under_way_the_highest_stays(rig: _Rig) -> None:
    answers = [rig.cursors.put("a", "c", seq) for seq in (1, 3, 2)]
    rig.runtime.run_until_idle()
    found = [(answer.result().moved, answer.result().cursor.seq) for answer in answers]
    assert found == [(True, 1), (True, 3), (False, 3)]


def test_what_cannot_be_is_refused_and_changes_nothing(rig: _Rig) -> None:
    with pytest.raises(InvalidRequestError):
        rig.move("c", 4)
    with pytest.raises(InvalidRequestError):
        rig.move("-c", 1)
    with pytest.raises(EpochMismatchError) as refused:
        rig.move("c", 1, epoch=99)
    assert refused.value.detail == {"epoch": rig.topic("a").id}
    with pytest.raises(TopicNotFoundError):
        rig.cursors.put("absent", "c", 0)
    with pytest.raises(NotFoundError):
        rig.cursors.get("a", "c")
    assert rig.stand() == {}


def test_a_topic_has_so_many_and_no_more_those_under_way_counted(rig: _Rig) -> None:
    for number in range(CURSORS_MAX):
        rig.cursors.put("a", f"c{number}", 0)
    with pytest.raises(ThrottledError) as refused:
        rig.cursors.put("a", "more", 0)
    assert refused.value.detail == {"limit": "max_cursors", "max": CURSORS_MAX}
    rig.runtime.run_until_idle()
    assert rig.move("c1", 1).moved
    assert rig.run(rig.cursors.delete("a", "c0"))
    assert rig.move("more", 0).moved


def test_a_deleted_cursor_may_begin_again_lower(rig: _Rig) -> None:
    rig.move("c", 3)
    assert rig.run(rig.cursors.delete("a", "c"))
    assert not rig.run(rig.cursors.delete("a", "c"))
    assert rig.move("c", 1).cursor.seq == 1


def test_cursors_die_with_their_topic(rig: _Rig) -> None:
    rig.move("c", 3)
    rig.run(rig.engine.delete_topic("a"))
    rig.put("a")
    assert rig.stand() == {}
    rig.kill()
    assert rig.stand() == {}


def test_lags_follow_the_head(rig: _Rig) -> None:
    rig.move("c", 3)
    rig.write("a", 4, 5)
    assert list(rig.cursors.lags([rig.topic("a")])) == [("a", "c", 2)]


@pytest.mark.parametrize("mode", CrashMode)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_what_was_synced_survives_a_crash(rig: _Rig, mode: CrashMode, *, checkpoint: bool) -> None:
    for name, seq in (("moved", 1), ("moved", 3), ("back", 3), ("gone", 2)):
        rig.move(name, seq)
    if checkpoint:
        assert rig.checkpoint()
    rig.move("back", 1, rewind=True, meta={"k": "v"})
    rig.run(rig.cursors.delete("a", "gone"))
    rig.runtime.advance(20)
    before = rig.cursors.all("a")
    rig.crash(mode, 1)
    assert rig.stand() == {"moved": 3, "back": 1}
    assert rig.cursors.all("a") == before
    rig.restart()
    assert rig.cursors.all("a") == before
