"""The config of a topic: seventeen fields, resolved."""

import pytest
from msgspec import json, structs

from driftq.errors import InvalidRequestError
from driftq.model.topic_config import Discard, Durability, TopicConfig, TopicPatch


def test_there_are_seventeen_fields_and_all_are_echoed() -> None:
    """inv: 39"""
    echoed = json.decode(json.encode(TopicConfig().resolved("t")))
    assert len(echoed) == 17
    assert (echoed["durability"], echoed["durable"], echoed["discard"], echoed["type"]) == (
        "disk",
        False,
        "old",
        "log",
    )
    assert (echoed["idempotency_window_ms"], echoed["lease_ms"], echoed["dead_letter"]) == (120_000, 30_000, None)


@pytest.mark.parametrize(
    ("given", "resolved"),
    [
        (TopicConfig(), Durability.DISK),
        (TopicConfig(durable=True), Durability.FSYNC),
        (TopicConfig(durable=True, durability=Durability.MEMORY), Durability.MEMORY),
        (TopicConfig(durability=Durability.FSYNC), Durability.FSYNC),
    ],
)
def test_an_explicit_class_wins_and_durable_says_the_same(given: TopicConfig, resolved: Durability) -> None:
    """inv: 39"""
    config = given.resolved("t")
    assert (config.durability, config.durable) == (resolved, resolved is Durability.FSYNC)
    assert config.resolved("t") == config


@pytest.mark.parametrize(("given", "echoed"), [(0, 100), (1, 100), (100, 100), (30_000, 30_000), (1 << 40, 86_400_000)])
def test_a_lease_is_clamped(given: int, echoed: int) -> None:
    """inv: 40"""
    assert TopicConfig(lease_ms=given).resolved("t").lease_ms == echoed


def test_a_jitter_is_clamped() -> None:
    """inv: 40"""
    assert TopicConfig(claim_jitter_ms=99_999).resolved("t").claim_jitter_ms == 5000


@pytest.mark.parametrize(
    ("config", "allowed"),
    [
        (TopicConfig(dead_letter="other"), True),
        (TopicConfig(dead_letter="t"), True),
        (TopicConfig(dead_letter="t", type="queue"), False),
        (TopicConfig(dead_letter="other", type="queue"), True),
        (TopicConfig(dead_letter="no name!"), False),
        (TopicConfig(dead_letter=""), False),
    ],
)
def test_a_dead_letter_is_a_topic_and_not_the_queue_itself(config: TopicConfig, allowed: bool) -> None:
    if allowed:
        assert config.resolved("t").dead_letter == config.dead_letter
        return
    with pytest.raises(InvalidRequestError) as refused:
        config.resolved("t")
    assert refused.value.detail == {"dead_letter": config.dead_letter}


def test_resolving_changes_nothing_else() -> None:
    config = TopicConfig(
        type="queue", ttl_ms=5, cap_records=6, cap_bytes=7, priority=-3, auto_priority=False, auto_create=False
    )
    resolved = config.resolved("t")
    changed = {"durability", "durable"}
    before, after = structs.asdict(config), structs.asdict(resolved)
    assert {name for name in before if before[name] != after[name]} <= changed


class TestPatch:
    def test_it_has_the_fields_of_a_config(self) -> None:
        assert [field.name for field in structs.fields(TopicPatch)] == [
            field.name for field in structs.fields(TopicConfig)
        ]

    def test_what_is_absent_stays_and_what_is_null_is_the_default(self) -> None:
        config = TopicConfig(ttl_ms=5, cap_records=7, priority=3, dead_letter="d", discard=Discard.REJECT)
        patch = TopicPatch(cap_records=8, ttl_ms=None, priority=None, dead_letter=None)
        assert patch.over(config) == TopicConfig(cap_records=8, discard=Discard.REJECT)
        assert TopicPatch().over(config) == config

    @pytest.mark.parametrize(
        ("stored", "patch", "wanted"),
        [
            (Durability.DISK, TopicPatch(durable=True), Durability.FSYNC),
            (Durability.FSYNC, TopicPatch(durable=False), Durability.DISK),
            (Durability.FSYNC, TopicPatch(durability=Durability.MEMORY), Durability.MEMORY),
            (Durability.FSYNC, TopicPatch(durability=None), Durability.DISK),
            (Durability.FSYNC, TopicPatch(durable=None), Durability.DISK),
            (Durability.DISK, TopicPatch(durability=None, durable=True), Durability.FSYNC),
            (Durability.DISK, TopicPatch(durability=Durability.MEMORY, durable=True), Durability.MEMORY),
            (Durability.EPHEMERAL, TopicPatch(ttl_ms=1), Durability.EPHEMERAL),
            (Durability.FSYNC, TopicPatch(ttl_ms=1), Durability.FSYNC),
        ],
    )
    def test_the_two_names_of_the_class_change_it_as_one(
        self, stored: Durability, patch: TopicPatch, wanted: Durability
    ) -> None:
        found = patch.over(TopicConfig(durability=stored).resolved("t")).resolved("t")
        assert (found.durability, found.durable) == (wanted, wanted is Durability.FSYNC)
