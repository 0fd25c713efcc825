"""What a server's refusals mean at a command line: a code, and what to do next. No key is ever told."""

from pathlib import Path

import pytest

from driftq.cli.exits import CommandError, ExitCode
from driftq.cli.server_access import api_key, complete_topic, connected, server_url, translated
from driftq.client import ApiError, ProtocolError, TransportError
from driftq.client.errors import ClientError


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (TransportError("no answer from u: refused", sent=False), ExitCode.UNREACHABLE, "driftq serve"),
        (ProtocolError("it says hello"), ExitCode.UNREACHABLE, "not a DriftQ server"),
        (ApiError(401, "unauthorized", "no"), ExitCode.DENIED, "DRIFTQ_API_KEY"),
        (ApiError(403, "forbidden", "no write scope"), ExitCode.DENIED, "no write scope"),
        (ApiError(404, "topic_not_found", "there is no topic 'x'"), ExitCode.ABSENT, "driftq topic ls"),
        (ApiError(400, "INVALID_ARGUMENT", "topic does not exist"), ExitCode.ABSENT, "does not exist"),
        (ApiError(409, "not_a_queue", "x is a log"), ExitCode.FAILED, "--type queue"),
        (ApiError(429, "throttled", "too many", retry_after=2.0), ExitCode.FAILED, "in 2 s"),
        (ApiError(500, "internal", "the disk is broken"), ExitCode.FAILED, "the disk is broken"),
        (ApiError(503, "not_ready", "recovering"), ExitCode.UNREACHABLE, "try again"),
    ],
)
def test_every_refusal_has_its_code_and_its_advice(
    error: ClientError, code: ExitCode, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRIFTQ_API_KEY", raising=False)
    told = translated(error, "http://u")
    assert told.code is code
    assert said in told.message


@pytest.mark.parametrize(
    ("in_file", "in_environment", "said"),
    [
        ("wrong", None, "does not know this API key"),
        ("wrong", "other", "does not know this API key"),
        (None, "other", "does not know this API key"),
        (None, None, "requires an API key"),
    ],
)
def test_a_key_that_is_refused_is_told_from_none(
    in_file: str | None, in_environment: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DRIFTQ_API_KEY", raising=False)
    if in_environment is not None:
        monkeypatch.setenv("DRIFTQ_API_KEY", in_environment)
    key_file = None if in_file is None else tmp_path / "key"
    if key_file is not None:
        key_file.write_text(f"{in_file}\n", encoding="utf-8")
    with pytest.raises(CommandError, match=said) as told, connected("http://u", key_file):
        raise ApiError(401, "unauthorized", "no")
    assert told.value.code is ExitCode.DENIED


def test_a_key_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sesame\n", encoding="utf-8")
    assert api_key(tmp_path / "key") == "sesame"
    assert api_key(None) is None
    (tmp_path / "key").write_bytes(b"\xff\xfe")
    with pytest.raises(CommandError) as refused:
        api_key(tmp_path / "key")
    assert refused.value.code is ExitCode.USAGE


def test_an_address_is_one_of_http() -> None:
    assert server_url("http://x:1") == "http://x:1"
    assert server_url(None) is None
    with pytest.raises(CommandError, match="http://"):
        server_url("x:1")


def test_nothing_is_completed_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTQ_URL", "http://127.0.0.1:1")
    assert complete_topic("a") == []
    with pytest.raises(CommandError), connected(None, None) as client:
        list(client.topics())


@pytest.mark.parametrize(
    ("name", "value"), [("DRIFTQ_URL", "http://here:abc"), ("DRIFTQ_API_KEY", "sésame"), ("DRIFTQ_API_KEY", "ses\name")]
)
def test_what_is_no_address_and_no_key_is_wrong_usage(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(CommandError) as refused, connected(None, None):
        pass
    assert refused.value.code is ExitCode.USAGE
    assert name in refused.value.message
    assert "same" not in refused.value.message
    assert complete_topic("a") == []


def test_a_certificate_file_that_is_absent_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTQ_CA_FILE", "/absent.pem")
    with pytest.raises(CommandError, match="DRIFTQ_CA_FILE") as refused, connected("https://127.0.0.1:1", None):
        pass
    assert refused.value.code is ExitCode.USAGE
