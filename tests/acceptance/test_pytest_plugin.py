"""The pytest plugin, as its users have it: a test suite of their own, in a directory of its own."""

import os

import pytest

pytest_plugins = ["pytester"]

_SUITE = """
from driftq.client import Client, Record


def put(value):
    with Client() as client:
        return client.topic("t").append(value).last_seq


def test_one(driftq_server, driftq_client):
    assert put({"a": 1}) == 1
    assert [item.data for item in driftq_client.topic("t").read()] == [{"a": 1}]
    driftq_client.broker.create_topic("b")
    driftq_client.broker.produce("b", "x")
    with driftq_client.broker.consume("b", "g") as stream:
        driftq_client.broker.ack(next(stream))


def test_the_next_one_has_a_server_of_its_own(driftq_client):
    assert list(driftq_client.topics()) == []
    assert put(1) == 1


def test_without(tmp_path):
    import os

    assert "DRIFTQ_URL" not in os.environ
"""


def test_every_test_has_a_fresh_server(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRIFTQ_URL", raising=False)
    pytester.makepyfile(_SUITE)
    result = pytester.runpytest_subprocess("-p", "driftq.pytest_plugin", "-W", "error", "-q")
    result.assert_outcomes(passed=3)


def test_who_uses_no_fixture_imports_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing():
            assert "driftq.client" not in sys.modules
            assert "driftq.server" not in sys.modules
        """
    )
    pytester.runpytest_subprocess("-p", "driftq.pytest_plugin", "-q").assert_outcomes(passed=1)


def test_nothing_is_left_behind(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_where="""
        def test_where(driftq_server):
            open("where", "w").write(driftq_server.data_dir)
        """
    )
    pytester.runpytest_subprocess("-p", "driftq.pytest_plugin", "-q").assert_outcomes(passed=1)
    assert not os.path.exists((pytester.path / "where").read_text(encoding="utf-8"))
