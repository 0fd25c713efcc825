"""Idempotency keys: a repeat gets the first answer, for as long as the window and the class of the write say."""

import pytest

from driftq.engine.state.idempotency_keys import IdempotencyKeys
from driftq.errors import InternalError
from driftq.model.topic_config import Discard, Durability
from driftq.system.disk import Disk
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
    keys = IdempotencyKeys()
    keys.remember(b"k", 100, 1, 1)
    keys.remember(b"k", 300, 2, 5)
    keys.expire(250)
    assert keys.find(b"k", 250) == (2, 5)
    assert list(keys.items()) == [(b"k", 300, 2, 5)]
    keys.expire(301)
    assert len(keys) == 0


def test_a_write_of_millions_of_records_keeps_its_seqs() -> None:
    """As many as a body can hold, where the settings allow so many."""
    keys = IdempotencyKeys()
    keys.remember(b"k", 100, 7, (1 << 32) - 1)
    assert keys.find(b"k", 100) == (7, (1 << 32) - 1)


def snapshot_bytes(rig: EngineRig) -> int:
    rig.checkpoint()
    return rig.engine.checkpointer.bytes_written


def test_keys_out_of_their_window_leave_memory_and_checkpoints_without_another_write(rig: EngineRig) -> None:
    """proves: G-KEY-3"""
    rig.put("t", idempotency_window_ms=10_000)
    rig.put("u", idempotency_window_ms=60_000)
    small = snapshot_bytes(rig)
    for number in range(500):
        rig.write("t", number, key=f"a key that is not short {number}")
    rig.write("u", 1, key="stays")
    assert snapshot_bytes(rig) > small + 500 * 20
    rig.runtime.advance(12_000)
    assert (len(rig.topic("t").keys), len(rig.topic("u").keys)) == (0, 1)
    assert snapshot_bytes(rig) < small + 500 * 20
    assert rig.write("u", 1, key="stays").deduped


def test_keys_out_of_their_window_do_not_come_back_with_a_restart(rig: EngineRig) -> None:
    rig.put("t", idempotency_window_ms=10_000)
    rig.write("t", 1, key="k")
    rig.runtime.stop()
    rig.clock.advance(10_001)
    rig.kill()
    assert len(rig.topic("t").keys) == 0


def test_keys_of_a_restart_leave_memory_when_their_window_is_over(rig: EngineRig) -> None:
    rig.put("t", idempotency_window_ms=10_000)
    rig.write("t", 1, key="k")
    rig.kill()
    assert len(rig.topic("t").keys) == 1
    rig.runtime.advance(12_000)
    assert len(rig.topic("t").keys) == 0


def test_topics_whose_keys_are_not_due_cost_nothing(rig: EngineRig) -> None:
    for number in range(20):
        rig.write(f"t{number}", 1, key="k")
    windows = rig.engine.key_windows
    assert len(windows) == 20
    rig.write("t0", 2, key="another")
    assert len(windows) == 20, "a topic is there once"
    rig.runtime.advance(121_500)
    assert len(windows) == 0


def test_millions_of_keys_leave_a_part_at_a_time() -> None:
    keys = IdempotencyKeys()
    for number in range(100):
        keys.remember(b"%d" % number, 100, number, 1)
    keys.expire(101, 30)
    assert (len(keys), keys.oldest_ts) == (70, 100)
