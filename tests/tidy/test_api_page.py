"""The page of the API says what the server says."""

from tools.api import PAGE, render


def test_the_page_is_what_the_server_describes() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "make docs"
