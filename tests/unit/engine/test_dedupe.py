"""Idempotency keys: a repeat gets the first answer, for as long as the window and the class of the write say."""

import pytest

from driftq.engine.dedupe import Keys
from driftq.errors import InternalError
from driftq.model.topic import Discard, Durability
from driftq.seam.disk import Disk
from driftq.testing import EngineRig, FaultyDisk

WINDOW = 120_000


@pytest.fixture
def rig() -> EngineRig:
    return EngineRig()


def test_a_repeat_gets_the_first_answer_and_appends_nothing(rig: EngineRig) -> None:
    first = rig.write("t", 1, 2, key="k")
    rig.write("t", 3)
    again = rig.write("t", "other", "body", "even longer", key="k")
    assert (again.first_seq, again.last_seq, again.count) == (first.first_seq, first.last_seq, 2)
    assert (again.deduped, again.created, again.head_seq) == (True, False, 2)
    assert (first.deduped, rig.topic("t").head) == (False, 3)


def test_a_key_is_remembered_to_the_end_of_its_window_and_no_longer(rig: EngineRig) -> None:
    """inv: 24"""
    rig.write("t", 1, key="k")
    rig.clock.advance(WINDOW)
    assert rig.write("t", 1, key="k").deduped
    rig.clock.advance(1)
    later = rig.write("t", 1, key="k")
    assert (later.deduped, later.first_seq) == (False, 2)
    rig.clock.advance(WINDOW)
    assert rig.write("t", 1, key="k").first_seq == 2


def test_a_repeat_is_answered_though_the_topic_is_full(rig: EngineRig) -> None:
    """inv: 22"""
    rig.put("t", cap_records=1, discard=Discard.REJECT)
    rig.write("t", 1, key="k")
    assert rig.write("t", 1, key="k").deduped


def test_concurrent_writes_with_one_key_append_once(rig: EngineRig) -> None:
    """inv: 23"""
    rig.put("t")
    under_way = [rig.write_nowait("t", value, key="k") for value in range(50)]
    rig.runtime.run_until_idle()
    answers = [pending.result() for pending in under_way]
    assert {(answer.first_seq, answer.last_seq) for answer in answers} == {(1, 1)}
    assert [answer.deduped for answer in answers] == [False] + [True] * 49
    assert rig.topic("t").count == 1


def test_the_loser_of_a_race_fails_when_the_winner_does_and_the_key_is_free(rig: EngineRig) -> None:
    faulty: list[FaultyDisk] = []

    def wrap(disk: Disk) -> Disk:
        faulty.append(
            FaultyDisk(disk, when=lambda operation, path: armed and operation == "pwritev" and "wal-" in path)
        )
        return faulty[-1]

    armed = False
    rig = EngineRig(wrap=wrap)
    rig.put("t")
    armed = True
    pair = [rig.write_nowait("t", 1, key="k") for _ in range(2)]
    rig.runtime.run_until_idle()
    for pending in pair:
        with pytest.raises(InternalError):
            pending.result()
    answer = rig.write("t", 1, key="k")
    assert (answer.deduped, answer.first_seq) == (False, 1)


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK, Durability.FSYNC])
def test_a_key_survives_as_the_records_of_its_write_do(rig: EngineRig, durability: Durability) -> None:
    rig.put("t", durability)
    rig.write("t", 1, 2, key="k")
    rig.restart()
    assert rig.write("t", 1, key="k").deduped
    rig.write("t", 3, key="l")
    rig.runtime.advance(20)
    rig.checkpoint()
    rig.crash()
    assert rig.write("t", 1, key="k").deduped
    assert rig.write("t", 1, key="l").deduped


def test_an_fsync_key_survives_a_power_loss_right_behind_its_ack(rig: EngineRig) -> None:
    """inv: 24"""
    rig.put("t")
    rig.write("t", 1, key="k")
    rig.crash()
    assert rig.write("t", 1, key="k").deduped


def test_the_key_of_a_lost_write_is_lost_with_it(rig: EngineRig) -> None:
    rig.put("t", Durability.MEMORY)
    rig.hold_wal()
    rig.write("t", 1, key="k")
    rig.crash()
    answer = rig.write("t", 1, key="k")
    assert (answer.deduped, answer.first_seq) == (False, 1)


def test_the_key_of_an_ephemeral_write_ends_with_the_process(rig: EngineRig) -> None:
    rig.put("t")
    rig.write("t", 1, key="written down")
    rig.put("t", Durability.EPHEMERAL)
    rig.write("t", 2, key="never")
    assert rig.write("t", 2, key="never").deduped
    rig.restart()
    assert rig.write("t", 1, key="written down").deduped
    assert not rig.write("t", 2, key="never").deduped


def test_a_recreated_topic_knows_no_keys(rig: EngineRig) -> None:
    """inv: 24"""
    rig.write("t", 1, key="k")
    rig.run(rig.engine.delete_topic("t"))
    answer = rig.write("t", 1, key="k")
    assert (answer.deduped, answer.first_seq, answer.created) == (False, 1, True)


def test_keys_belong_to_their_topic(rig: EngineRig) -> None:
    rig.write("t", 1, key="k")
    assert not rig.write("u", 1, key="k").deduped


def test_a_key_used_again_behind_its_window_is_kept_for_its_newer_use() -> None:
    keys = Keys()
    keys.remember(b"k", 100, 1, 1)
    keys.remember(b"k", 300, 2, 5)
    keys.expire(350, 100)
    assert keys.find(b"k", 350, 100) == (2, 5)
    assert list(keys.items()) == [(b"k", 300, 2, 5)]
    keys.expire(401, 100)
    assert len(keys) == 0


def test_a_write_of_millions_of_records_keeps_its_seqs() -> None:
    """As many as a body can hold, where the settings allow so many."""
    keys = Keys()
    keys.remember(b"k", 100, 7, (1 << 32) - 1)
    assert keys.find(b"k", 100, 0) == (7, (1 << 32) - 1)
