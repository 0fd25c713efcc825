"""Which topics there are: one creator of a name, no ghosts, and calls that meet each other under way."""

import pytest
from msgspec.structs import replace

from driftq.errors import (
    InternalError,
    InvalidRequestError,
    ThrottledError,
    TopicExistsIncompatibleError,
    TopicNotEmptyError,
    TopicNotFoundError,
)
from driftq.model.limits import Limits
from driftq.model.topic_config import Durability, TopicConfig, TopicPatch
from driftq.testing import SMALL, EngineRig, FaultyDisk


@pytest.fixture
def rig() -> EngineRig:
    return EngineRig()


def names(rig: EngineRig) -> list[str]:
    return sorted(topic.name for topic in rig.engine.catalog.visible())


def test_a_put_creates_once_and_then_replaces_the_whole_config(rig: EngineRig) -> None:
    """inv: 38"""
    assert rig.put("t", cap_records=5, priority=3) is True
    assert rig.put("t", ttl_ms=7) is False
    config = rig.topic("t").config
    assert (config.cap_records, config.priority, config.ttl_ms) == (0, None, 7)
    rig.crash()
    assert rig.topic("t").config == config


def test_two_creators_of_one_name_make_one_topic(rig: EngineRig) -> None:
    puts = [rig.put_nowait("t") for _ in range(5)]
    rig.runtime.run_until_idle()
    assert [put.result() for put in puts] == [True, False, False, False, False]
    assert names(rig) == ["t"]
    rig.crash()
    assert names(rig) == ["t"]
    assert rig.put("other") is True


def test_creating_writes_of_one_name_make_one_topic(rig: EngineRig) -> None:
    writes = [rig.write_nowait("t", value) for value in range(3)]
    put = rig.put_nowait("t")
    rig.runtime.run_until_idle()
    assert [write.result().created for write in writes] == [True, False, False]
    assert put.result() is False
    assert sorted(write.result().first_seq for write in writes) == [1, 2, 3]


def test_a_topic_is_not_there_before_its_creation_is_synced(rig: EngineRig) -> None:
    rig.hold_wal()
    put = rig.put_nowait("t", Durability.EPHEMERAL)
    rig.runtime.run_until_idle()
    with pytest.raises(TopicNotFoundError):
        rig.topic("t")
    with pytest.raises(TopicNotFoundError):
        rig.page("t")
    rig.release_wal()
    assert put.result() is True
    assert rig.topic("t").head == 0


def test_a_put_during_creation_is_an_update_and_its_config_wins(rig: EngineRig) -> None:
    rig.hold_wal()
    first = rig.put_nowait("t", cap_records=1)
    rig.runtime.run_until_idle()
    second = rig.put_nowait("t", cap_records=2)
    rig.runtime.run_until_idle()
    rig.release_wal()
    assert (first.result(), second.result(), rig.topic("t").config.cap_records) == (True, False, 2)


def test_a_type_never_changes(rig: EngineRig) -> None:
    """inv: 38"""
    rig.put("t", type="queue")
    with pytest.raises(TopicExistsIncompatibleError) as refused:
        rig.put("t")
    assert refused.value.detail == {"topic": "t", "existing_type": "queue", "requested_type": "log"}
    assert rig.put("t", type="queue", lease_ms=500) is False


def test_a_type_change_that_meets_the_creation_under_way_is_refused_too(rig: EngineRig) -> None:
    rig.hold_wal()
    rig.put_nowait("t", type="queue")
    second = rig.put_nowait("t")
    rig.release_wal()
    with pytest.raises(TopicExistsIncompatibleError):
        second.result()


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "é", "a" * 256, "a>b"])
def test_a_name_that_is_none_creates_nothing(rig: EngineRig, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        rig.put(name)
    with pytest.raises(InvalidRequestError):
        rig.write(name, 1)
    with pytest.raises(TopicNotFoundError):
        rig.page(name)
    assert rig.run(rig.engine.delete_topic(name)) is False


def test_deleting_is_idempotent_and_a_recreated_name_is_another_topic(rig: EngineRig) -> None:
    rig.write("t", *range(40), key="k")
    first = rig.topic("t").id
    assert rig.run(rig.engine.delete_topic("t")) is True
    assert rig.run(rig.engine.delete_topic("t")) is False
    with pytest.raises(TopicNotFoundError):
        rig.topic("t")
    assert rig.write("t", 1).first_seq == 1
    assert rig.topic("t").id > first
    rig.runtime.advance(20)
    for _ in range(2):
        rig.crash()
        assert [record["data"] for record in rig.walk("t")[0]] == [1]
    rig.runtime.run_until_idle()
    assert rig.disk.names("/data/topics") in ([], [f"{rig.topic('t').id:08X}"])


def test_if_empty_counts_what_is_under_way(rig: EngineRig) -> None:
    rig.put("t")
    rig.hold_wal()
    rig.write_nowait("t", 1)
    with pytest.raises(TopicNotEmptyError):
        rig.engine.delete_topic("t", if_empty=True)
    rig.release_wal()
    with pytest.raises(TopicNotEmptyError) as refused:
        rig.engine.delete_topic("t", if_empty=True)
    assert refused.value.detail == {"topic": "t", "count": 1}
    rig.delete("t", before_seq=2)
    assert rig.run(rig.engine.delete_topic("t", if_empty=True)) is True


def test_two_deletions_at_once_delete_once_and_count_once(rig: EngineRig) -> None:
    rig.write("u", 1)
    rig.write("t", 1, 2, 3)
    rig.hold_wal()
    deletions = [rig.engine.delete_topic("t") for _ in range(3)]
    rig.release_wal()
    assert [deletion.result() for deletion in deletions] == [True, False, False]
    usage = rig.engine.blocks.usage
    assert (usage.records, usage.payload) == (1, 1)


def test_writes_before_a_deletion_are_acked_and_gone(rig: EngineRig) -> None:
    rig.put("t")
    rig.hold_wal()
    write = rig.write_nowait("t", 1)
    rig.runtime.run_until_idle()
    deletion = rig.engine.delete_topic("t")
    rig.release_wal()
    assert (write.result().first_seq, deletion.result()) == (1, True)
    assert names(rig) == []
    rig.crash()
    assert names(rig) == []


def test_a_write_behind_a_deletion_goes_to_a_new_topic(rig: EngineRig) -> None:
    rig.put("t", cap_records=5)
    rig.write("t", 1, 2, 3)
    rig.hold_wal()
    deletion = rig.engine.delete_topic("t")
    write = rig.write_nowait("t", "new")
    never = rig.write_nowait("t", 1, create=False)
    rig.runtime.run_until_idle()
    assert rig.seqs("t") == [1, 2, 3], "readers see the old one until the deletion is committed"
    rig.release_wal()
    assert deletion.result() is True
    assert (write.result().first_seq, write.result().created) == (1, True)
    assert never.result().first_seq == 2
    assert (rig.topic("t").config.cap_records, rig.topic("t").head) == (0, 2)
    rig.runtime.advance(20)
    rig.crash()
    assert [record["data"] for record in rig.walk("t")[0]] == ["new", 1]


def test_a_write_that_may_not_create_fails_behind_a_deletion(rig: EngineRig) -> None:
    rig.put("t")
    rig.hold_wal()
    rig.engine.delete_topic("t")
    write = rig.write_nowait("t", 1, create=False)
    rig.release_wal()
    with pytest.raises(TopicNotFoundError):
        write.result()
    assert names(rig) == []


def test_a_put_behind_a_deletion_creates_anew(rig: EngineRig) -> None:
    """An acked config must not vanish with the topic that the call before it deleted."""
    rig.put("t", type="queue")
    rig.write("t", 1)
    rig.hold_wal()
    deletion = rig.engine.delete_topic("t")
    put = rig.put_nowait("t", cap_records=3)
    rig.release_wal()
    assert (deletion.result(), put.result()) == (True, True)
    assert (rig.topic("t").config.cap_records, rig.topic("t").head) == (3, 0)
    rig.crash()
    assert (rig.topic("t").config.cap_records, rig.topic("t").head) == (3, 0)


def test_a_delete_of_records_behind_a_deletion_finds_no_topic(rig: EngineRig) -> None:
    rig.write("t", 1, 2)
    rig.write("u", 1)
    rig.hold_wal()
    deletion = rig.engine.delete_topic("t")
    delete = rig.engine.delete_records("t", before_seq=2)
    rig.release_wal()
    assert deletion.result() is True
    with pytest.raises(TopicNotFoundError):
        delete.result()
    usage = rig.engine.blocks.usage
    assert (usage.records, usage.payload) == (1, 1)


def failing_wal() -> tuple[EngineRig, list[bool]]:
    """An engine whose WAL writes fail while the list says so."""
    armed = [False]

    def strikes(operation: str, path: str) -> bool:
        return armed[0] and operation == "pwritev" and "/wal-" in path

    return EngineRig(wrap=lambda disk: FaultyDisk(disk, forever=True, when=strikes)), armed


def test_a_creation_that_fails_leaves_the_name_free() -> None:
    rig, armed = failing_wal()
    rig.put("t")
    armed[0] = True
    put, write = rig.put_nowait("u"), rig.write_nowait("u", 1)
    rig.runtime.run_until_idle()
    for pending in (put, write):
        with pytest.raises(InternalError):
            pending.result()
    assert names(rig) == ["t"]
    armed[0] = False
    assert rig.put("u") is True
    rig.crash()
    assert names(rig) == ["t", "u"]


def test_an_update_that_fails_leaves_the_old_config_in_force() -> None:
    rig, armed = failing_wal()
    rig.put("t", cap_records=5)
    armed[0] = True
    put = rig.put_nowait("t", cap_records=1)
    rig.runtime.run_until_idle()
    with pytest.raises(InternalError):
        put.result()
    assert rig.topic("t").config.cap_records == 5
    armed[0] = False
    rig.write("t", 1, 2, 3)
    rig.crash()
    assert rig.seqs("t") == [1, 2, 3]


def test_a_deletion_that_fails_leaves_the_topic_there_and_usable() -> None:
    rig, armed = failing_wal()
    rig.put("t")
    rig.write("t", 1)
    armed[0] = True
    deletion = rig.engine.delete_topic("t")
    behind = rig.write_nowait("t", 2)
    rig.runtime.run_until_idle()
    with pytest.raises(InternalError):
        deletion.result()
    armed[0] = False
    rig.runtime.advance(1100)
    assert behind.settled
    rig.write("t", 3)
    assert rig.seqs("t")[0] == 1
    rig.crash()
    assert rig.seqs("t")[0] == 1


def test_topics_have_a_cap_that_racing_creations_do_not_overrun() -> None:
    """inv: 75"""
    rig = EngineRig(replace(SMALL, limits=Limits(topics_max=3)))
    made = refused = 0
    for number in range(10):
        try:
            rig.put_nowait(f"t{number}")
            made += 1
        except ThrottledError as error:
            refused += 1
            detail = error.detail
    rig.runtime.run_until_idle()
    assert (made, refused, detail) == (3, 7, {"limit": "max_topics", "max": 3})
    assert rig.put("t0", cap_records=1) is False
    rig.run(rig.engine.delete_topic("t0"))
    assert rig.put("t9") is True


def test_ids_are_never_used_twice_not_even_over_restarts(rig: EngineRig) -> None:
    seen = set()
    for _ in range(3):
        rig.put("t")
        seen.add(rig.topic("t").id)
        rig.run(rig.engine.delete_topic("t"))
        rig.restart()
    assert len(seen) == 3


def test_config_is_resolved_when_it_is_echoed(rig: EngineRig) -> None:
    rig.run(rig.engine.put_topic("t", TopicConfig(durable=True, lease_ms=1)))
    config = rig.topic("t").config
    assert (config.durability, config.durable, config.lease_ms) == (Durability.FSYNC, True, 100)


def test_names_are_in_order_whatever_comes_and_goes(rig: EngineRig) -> None:
    catalog = rig.engine.catalog
    for name in ("c", "a", "b:1"):
        rig.put(name)
    assert catalog.names() == ["a", "b:1", "c"]
    rig.put("B")
    rig.run(rig.engine.delete_topic("a"))
    rig.put("d")
    assert catalog.names() == ["B", "b:1", "c", "d"]
    rig.run(rig.engine.delete_topic("c"))
    rig.put("c")
    assert catalog.names() == sorted(catalog.by_name) == ["B", "b:1", "c", "d"]
    rig.restart()
    assert rig.engine.catalog.names() == ["B", "b:1", "c", "d"]


class TestPatch:
    def test_it_changes_what_it_names_and_survives_a_crash(self, rig: EngineRig) -> None:
        """proves: G-CONF-1"""
        rig.put("t", cap_records=5, ttl_ms=7, priority=3)
        config = rig.run(rig.engine.patch_topic("t", TopicPatch(cap_records=6, priority=None)))
        assert (config.cap_records, config.ttl_ms, config.priority, config.durability) == (6, 7, None, "fsync")
        assert rig.topic("t").config == config
        rig.crash()
        assert rig.topic("t").config == config

    def test_patches_under_way_together_do_not_undo_each_other(self, rig: EngineRig) -> None:
        rig.put("t")
        rig.hold_wal()
        first = rig.engine.patch_topic("t", TopicPatch(cap_records=5))
        rig.runtime.run_until_idle()
        rest = [
            rig.engine.patch_topic("t", TopicPatch(ttl_ms=7)),
            rig.engine.patch_topic("t", TopicPatch(priority=3)),
        ]
        rig.release_wal()
        rig.runtime.run_until_idle()
        assert (first.result().cap_records, first.result().ttl_ms) == (5, 0)
        assert (rest[-1].result().cap_records, rest[-1].result().ttl_ms, rest[-1].result().priority) == (5, 7, 3)
        assert rig.topic("t").config == rest[-1].result()

    def test_it_comes_after_a_put_that_is_under_way(self, rig: EngineRig) -> None:
        rig.put("t", cap_records=1)
        rig.hold_wal()
        put = rig.put_nowait("t", ttl_ms=7)
        patch = rig.engine.patch_topic("t", TopicPatch(priority=3))
        rig.release_wal()
        rig.runtime.run_until_idle()
        assert put.result() is False
        config = patch.result()
        assert (config.cap_records, config.ttl_ms, config.priority) == (0, 7, 3)

    def test_it_comes_after_the_creation_and_the_deletion_of_its_topic(self, rig: EngineRig) -> None:
        rig.hold_wal()
        rig.put_nowait("t", cap_records=5)
        patch = rig.engine.patch_topic("t", TopicPatch(ttl_ms=7))
        rig.release_wal()
        rig.runtime.run_until_idle()
        assert (patch.result().cap_records, patch.result().ttl_ms) == (5, 7)
        rig.hold_wal()
        rig.engine.delete_topic("t")
        late = rig.engine.patch_topic("t", TopicPatch(ttl_ms=8))
        rig.release_wal()
        rig.runtime.run_until_idle()
        with pytest.raises(TopicNotFoundError):
            late.result()
        with pytest.raises(TopicNotFoundError):
            rig.engine.patch_topic("t", TopicPatch())

    def test_it_never_changes_the_type(self, rig: EngineRig) -> None:
        rig.put("q", type="queue", lease_ms=500)
        for patch in (TopicPatch(type="log"), TopicPatch(type=None)):
            with pytest.raises(TopicExistsIncompatibleError):
                rig.engine.patch_topic("q", patch)
        assert rig.run(rig.engine.patch_topic("q", TopicPatch(type="queue", max_deliveries=2))).lease_ms == 500

    def test_one_that_cannot_be_logged_changes_nothing_and_holds_nobody_up(self) -> None:
        rig, armed = failing_wal()
        rig.put("t", cap_records=5)
        armed[0] = True
        failed = [
            rig.engine.patch_topic("t", TopicPatch(cap_records=6)),
            rig.engine.patch_topic("t", TopicPatch(ttl_ms=7)),
        ]
        rig.runtime.run_until_idle()
        for patch in failed:
            with pytest.raises(InternalError):
                patch.result()
        assert (rig.topic("t").config.cap_records, rig.topic("t").config.ttl_ms) == (5, 0)
        armed[0] = False
        assert rig.run(rig.engine.patch_topic("t", TopicPatch(ttl_ms=8))).cap_records == 5


def test_ensure_creates_with_a_config_and_leaves_a_topic_that_is_there(rig: EngineRig) -> None:
    config = TopicConfig(cap_records=5)
    assert rig.run(rig.engine.ensure_topic("t", config)) is True
    assert rig.run(rig.engine.ensure_topic("t", TopicConfig(cap_records=6))) is False
    assert rig.run(rig.engine.ensure_topic("t", TopicConfig(type="queue"))) is False
    assert rig.topic("t").config == config.resolved("t")
