"""Which commit a build says it is of."""

import pytest

from driftq.http.v1.probes import UNKNOWN, commit_of


@pytest.mark.parametrize(
    ("origin", "commit"),
    [
        (None, UNKNOWN),
        ('{"url":"file:///x","dir_info":{"editable":true}}', UNKNOWN),
        ("no json", UNKNOWN),
        ('{"url":"https://example.org/r","vcs_info":{"vcs":"git","commit_id":"c0ffee"}}', "c0ffee"),
    ],
)
def test_the_commit_is_what_the_installer_noted(origin: str | None, commit: str) -> None:
    assert commit_of(origin) == commit
