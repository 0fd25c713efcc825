"""Keys: grammar, comparison, and what is never shown (http-v0 §2)."""

import pytest

from driftq.errors import StartError
from driftq.http.access import EVERYTHING, Scope
from driftq.http.keys import ApiKeys, presented
from driftq.http.request import Request


def test_no_keys_are_no_keys() -> None:
    assert not ApiKeys.parse("")
    assert ApiKeys.parse("").find(b"") is None


@pytest.mark.parametrize("text", [" ", ",", " , ,, "])
def test_a_list_without_any_key_is_refused(text: str) -> None:
    """A server that was meant to have keys must not start without them."""
    with pytest.raises(StartError, match="DRIFTQ_API_KEYS contains no key"):
        ApiKeys.parse(text)


def test_entries_are_trimmed_and_cut_at_the_first_two_colons() -> None:
    keys = ApiKeys.parse(" full , ,reader:READ,, limited::ten: ,both:r+Del:a|b:c||,x:rw:")
    full, reader, limited, both, x = (keys.find(key) for key in (b"full", b"reader", b"limited", b"both", b"x"))
    assert full is not None
    assert reader is not None
    assert limited is not None
    assert both is not None
    assert x is not None
    assert [access.key_id for access in (full, reader, limited, both, x)] == [0, 1, 2, 3, 4]
    assert (full.scopes, full.prefixes) == (EVERYTHING, ())
    assert (reader.scopes, reader.prefixes) == (Scope.READ, ())
    assert (limited.scopes, limited.prefixes) == (EVERYTHING, ("ten:",))
    assert (both.scopes, both.prefixes) == (Scope.READ | Scope.DELETE, ("a", "b:c"))
    assert (x.scopes, x.prefixes) == (Scope.READ | Scope.WRITE, ())
    for stranger in (b"", b"ful", b"full ", b"Full", b"reader:READ", b"limited::ten:"):
        assert keys.find(stranger) is None


@pytest.mark.parametrize(
    "text", ["k:reed", "ok,k:read+everything", "k:read,k2:superuser:x", "k:read+", ":read", " :: "]
)
def test_a_bad_entry_refuses_the_start_without_showing_it(text: str) -> None:
    with pytest.raises(StartError) as refused:
        ApiKeys.parse(f"sesame-5f1d,{text}")
    assert "DRIFTQ_API_KEYS" in refused.value.message
    for part in ("sesame-5f1d", "reed", "everything", "superuser", "k2"):
        assert part not in refused.value.message


def test_of_two_entries_with_one_key_the_first_counts() -> None:
    access = ApiKeys.parse("k:read,k:write").find(b"k")
    assert access is not None
    assert access.scopes == Scope.READ


def test_no_key_stays_in_memory_in_the_clear() -> None:
    keys = ApiKeys.parse("sesame-5f1d:read:pre")
    assert "sesame" not in repr(vars(keys))


def test_every_key_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return one == other

    monkeypatch.setattr("driftq.http.keys.compare_digest", compare)
    keys = ApiKeys.parse("a,b,c")
    for token in (b"a", b"c", b"none"):
        compared.clear()
        keys.find(token)
        assert len(compared) == 3


def asked(query: str = "", *headers: bytes) -> Request:
    return Request("GET", "/", query, [(b"authorization", header) for header in headers])


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (b"Bearer k", b"k"),
        (b"Bearer   k  ", b"k"),
        (b"Bearer a b", b"a b"),
        (b"bearer k", None),
        (b"BEARER k", None),
        (b"Basic k", None),
        (b"k", None),
        (b"Bearerk", None),
        (b"Bearer", None),
        (b"", None),
    ],
)
def test_the_header_is_read_strictly(header: bytes, token: bytes | None) -> None:
    assert presented(asked("", header), form_token=False) == token


def test_a_token_counts_where_it_may_and_the_first_one_and_the_header_first() -> None:
    """inv: 74"""
    assert presented(asked("token=a"), form_token=False) is None
    assert presented(asked("node=w&token=a&token=b"), form_token=True) == b"a"
    assert presented(asked("token=open+sesame%21%C3%A9"), form_token=True) == "open sesame!é".encode()
    assert presented(asked("token=a", b"Bearer b"), form_token=True) == b"b"
    assert presented(asked("token=a", b"nonsense"), form_token=True) is None
    assert presented(asked("x=token"), form_token=True) is None
