"""Slots: exact, per key and in all, and let go once."""

import pytest

from driftq.engine.load.admission import Admission
from driftq.errors import ThrottledError
from driftq.model.limits import Limits


def refused_by(admission: Admission, key_id: int | None) -> object:
    with pytest.raises(ThrottledError) as refused:
        admission.take_stream(key_id)
    assert refused.value.retry_after_ms == 1000
    return refused.value.detail


def test_streams_have_a_cap_in_all_and_one_per_key() -> None:
    admission = Admission(Limits(sse_connections_max=3, sse_connections_per_key_max=2))
    first, _ = admission.take_stream(1), admission.take_stream(1)
    assert refused_by(admission, 1) == {"limit": "max_sse_connections_per_key", "max": 2}
    admission.take_stream(2)
    assert refused_by(admission, 2) == {"limit": "max_sse_connections", "max": 3}
    assert admission.streams == 3
    first.release()
    first.release()
    assert admission.streams == 2
    admission.take_stream(1)
    assert admission.streams == 3


def test_without_keys_only_the_total_counts() -> None:
    admission = Admission(Limits(sse_connections_max=3, sse_connections_per_key_max=1, inflight_per_key_max=1))
    for _ in range(3):
        admission.take_stream(None)
        admission.take_request(None)
    assert refused_by(admission, None) == {"limit": "max_sse_connections", "max": 3}


def test_zero_is_no_cap() -> None:
    admission = Admission(Limits(sse_connections_max=0, sse_connections_per_key_max=0, inflight_per_key_max=0))
    for _ in range(50):
        admission.take_stream(1)
        admission.take_request(1)
    assert admission.streams == 50


def test_requests_of_a_key_have_a_cap_of_their_own() -> None:
    admission = Admission(Limits(inflight_per_key_max=2))
    one, _ = admission.take_request(7), admission.take_request(7)
    with pytest.raises(ThrottledError) as refused:
        admission.take_request(7)
    assert refused.value.detail == {"limit": "max_inflight_per_key", "max": 2}
    admission.take_request(8)
    one.release()
    admission.take_request(7)
