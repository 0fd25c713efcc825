"""A tombstone on the wire."""

from msgspec import json

from driftq.model.tombstone import Reason, Tombstone


def test_it_is_written_as_the_contract_shows_it() -> None:
    tombstone = Tombstone(
        seq=901, gap_from=121, gap_to=900, reason=Reason.CAP, missed_estimate=780, earliest_seq=901, head_seq=1400
    )
    assert json.decode(json.encode(tombstone)) == {
        "$type": "tombstone",
        "$seq": 901,
        "gap_from": 121,
        "gap_to": 900,
        "reason": "cap",
        "missed_estimate": 780,
        "earliest_seq": 901,
        "head_seq": 1400,
    }
