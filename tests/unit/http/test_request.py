"""Targets, headers and arguments of a request."""

import pytest

from driftq.http import request as module
from driftq.http.request import Request


def test_a_target_is_cut_at_its_question_mark_and_a_proxys_form_is_understood() -> None:
    for target in (
        b"/v0/topics/a%20b?x=1?2",
        b"http://host:80/v0/topics/a%20b?x=1?2",
        b"HTTP://h/v0/topics/a%20b?x=1?2",
    ):
        request = Request.of(b"GET", target, [], b"")
        assert (request.method, request.path, request.query) == ("GET", "/v0/topics/a%20b", "x=1?2")
    assert Request.of(b"M-SEARCH", b"*", [], b"").method == "M-SEARCH"


def test_arguments_are_form_decoded_and_the_first_of_a_name_counts() -> None:
    request = Request("GET", "/", "a=1&b=x+y%21&a=2&c=&d&%65=5&f=%ff")
    found = [request.argument(name) for name in ("a", "b", "c", "d", "f", "z")]
    assert found == ["1", "x y!", "", "", "\ufffd", None]


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("1", True), ("false", False), ("0", False), ("True", None), ("", None), ("x", None)],
)
def test_a_flag_that_is_none_of_four_words_is_its_default(text: str, value: bool | None) -> None:
    request = Request("GET", "/", f"flag={text}")
    for default in (True, False):
        assert request.flag("flag", default) is (default if value is None else value)
        assert Request("GET", "/").flag("flag", default) is default


@pytest.mark.parametrize("text", ["", "-1", "1.0", "x", "1" * 21, "1" * 5000, "+1", "\u0661", "1_0"])
def test_a_number_that_cannot_be_read_is_its_default(text: str) -> None:
    assert Request("GET", "/", f"n={text}").number("n", 7) == 7
    assert Request("GET", "/", "n=12").number("n", 7) == 12


def test_a_token_is_not_remembered_and_what_is_remembered_is_bounded() -> None:
    Request("GET", "/", "token=sesame").argument("token")
    Request("GET", "/", "a=1&%74oken=sesame").argument("a")
    assert "sesame" not in str(module._known_queries)
    for n in range(3000):
        assert Request("GET", "/", f"n={n}").number("n", 0) == n
    assert len(module._known_queries) <= 1024


def test_a_target_that_is_asked_for_again_is_the_same_and_none_with_a_token_is_kept() -> None:
    for target in (b"/v0/topics/a?x=1", b"/v0/w?token=sesame", b"/v0/w?%74oken=sesame"):
        cut = [(asked.path, asked.query) for asked in (Request.of(b"GET", target, [], b"") for _ in range(2))]
        assert cut == [tuple(target.decode().split("?"))] * 2
    assert "sesame" not in str(module._known_targets)
    for n in range(3000):
        assert Request.of(b"GET", b"/v0/topics/%d" % n, [], b"").path == f"/v0/topics/{n}"
    assert len(module._known_targets) <= 1024


def test_who_hung_up_is_told_of_once() -> None:
    heard: list[int] = []
    request = Request("GET", "/")
    request.hang_up()
    request.on_hang_up = lambda: heard.append(1)
    request.hang_up()
    request.hang_up()
    assert heard == [1]
