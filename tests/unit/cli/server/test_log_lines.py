"""The log's level and form."""

import json
import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from driftq.cli.server.log_lines import LINE_BYTES, JsonLines, TextLines, chosen_format, start_log
from driftq.config import LOG_LEVELS
from driftq.system.log_facts import facts

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


@pytest.fixture
def fresh_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """A root logger of the test's own; what `start_log` hooks is put back."""
    root = logging.Logger("root")
    monkeypatch.setattr(logging, "root", root)
    for module, hook in ((sys, "excepthook"), (threading, "excepthook"), (sys, "unraisablehook")):
        monkeypatch.setattr(module, hook, getattr(module, hook))
    monkeypatch.setattr(logging, "_warnings_showwarning", None)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    yield root
    logging.captureWarnings(False)


def record(message: str, *arguments: object, error: BaseException | None = None, **named: Any) -> logging.LogRecord:
    info = None if error is None else (type(error), error, error.__traceback__)
    made = logging.LogRecord("a.b", logging.ERROR, "", 0, message, arguments, info)
    made.created = 1_763_444_759.069
    made.__dict__.update(facts(**named))
    return made


@pytest.mark.parametrize("level", LOG_LEVELS)
def test_every_level_that_a_setting_may_name_is_one_of_logging(level: str, fresh_log: logging.Logger) -> None:
    fresh_log.handlers.clear()  # those of the test runner
    start_log(level)
    assert logging.getLevelName(fresh_log.level) == {"warn": "WARNING"}.get(level, level.upper())


def test_a_line_of_json_has_time_level_message_facts_and_trace() -> None:
    made = record("%s failed\nbadly", "it", error=ValueError("inside"), request_id="abc", ms=1.5, ready=True, key=None)
    line = JsonLines().format(made)
    assert "\n" not in line
    found = json.loads(line)
    assert found.pop("trace").endswith("ValueError: inside")
    assert found == {
        "time": "2025-11-18T05:45:59.069Z",
        "level": "error",
        "logger": "a.b",
        "message": "it failed\nbadly",
        "request_id": "abc",
        "ms": 1.5,
        "ready": True,
    }


def test_a_line_of_text_is_one_line_and_has_the_same_time() -> None:
    line = TextLines().format(record("it failed\n2026 forged", path="/v0/a b", status=503, ready=False))
    assert line == ('2025-11-18T05:45:59.069Z ERROR a.b: it failed\\n2026 forged path="/v0/a b" status=503 ready=false')


@pytest.mark.parametrize("text", ["é\u2028", "\udcff", "\x00\x1b[31m", '"\\'])
def test_a_line_of_json_is_ascii_whatever_it_says(text: str) -> None:
    line = JsonLines().format(record(text, path=text))
    assert line.isascii()
    assert (json.loads(line)["message"], json.loads(line)["path"]) == (text, text)


def test_arguments_that_do_not_fit_do_not_lose_the_line() -> None:
    assert json.loads(JsonLines().format(record("%d of %d", "one")))["message"] == "%d of %d"


def test_a_fact_cannot_replace_time_level_logger_or_message() -> None:
    assert json.loads(JsonLines().format(record("said", time="forged", logger="forged")))["logger"] == "a.b"


@pytest.mark.parametrize("form", [TextLines(), JsonLines()])
@pytest.mark.parametrize("char", ["x", "é", "\x00", "😀"])
def test_no_line_is_longer_than_a_pipe_takes_at_once(form: logging.Formatter, char: str) -> None:
    for made in (record(char * 10_000), record("short", error=ValueError(char * 10_000)), record("s", p=char * 9999)):
        line = form.format(made)
        assert len(line.encode("utf-8", "backslashreplace")) < LINE_BYTES
        if isinstance(form, JsonLines):
            assert json.loads(line)["logger"] == "a.b"


def test_a_cut_trace_keeps_its_end() -> None:
    def deep(levels: int) -> None:
        if levels == 0:
            raise ValueError("the cause")
        [deep, deep][levels % 2](levels - 1)

    with pytest.raises(ValueError, match="cause") as caught:
        deep(60)
    for form in (TextLines(), JsonLines()):
        line = form.format(record("failed", error=caught.value))
        assert "ValueError: the cause" in line
        assert "failed" in line


@pytest.mark.parametrize(
    ("arguments", "environment", "wanted"),
    [
        ((), {}, "text"),
        ((), {"DRIFTQ_LOG_FORMAT": "json"}, "json"),
        (("--log-format", "json"), {}, "json"),
        (("--log-format=json",), {}, "json"),
        (("--log-format", "text"), {"DRIFTQ_LOG_FORMAT": "json"}, "text"),
        (("--log-format",), {}, "text"),
    ],
)
def test_the_format_is_known_before_the_flags_are(
    arguments: tuple[str, ...], environment: dict[str, str], wanted: str
) -> None:
    assert chosen_format(arguments, environment) == wanted


CHATTY = """
import logging, os, sys, threading, warnings
from driftq.cli.server.log_lines import start_log
start_log("info", "json")
warnings.warn("old ways")
thread = threading.Thread(target=lambda: 1 / 0, name="helper")
thread.start()
thread.join()
class Bad:
    def __del__(self):
        raise ValueError("in a finalizer")
Bad()
if os.fork() == 0:
    logging.getLogger("child").info("from a child")
    os._exit(0)
os.wait()
raise RuntimeError("the end")
"""


def test_everything_that_python_prints_is_a_line_of_json() -> None:
    done = subprocess.run([sys.executable, "-c", CHATTY], capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert all(re.fullmatch(TIME, line["time"]) for line in lines)
    said = " ".join(line["message"] + line.get("trace", "") for line in lines)
    for words in ("old ways", "helper", "ZeroDivisionError", "in a finalizer", "from a child", "RuntimeError: the end"):
        assert words in said


def test_nothing_waits_for_a_log_that_nobody_reads() -> None:
    """row: F-LOG-1"""
    reading, writing = os.pipe()
    code = (
        "import logging, sys\nfrom driftq.cli.server.log_lines import start_log\nstart_log('info', 'json')\n"
        "for n in range(5000): logging.info('line %d', n)\n"
        "sys.stdout.write('through\\n'); sys.stdout.flush(); sys.stdin.readline()\nlogging.info('read again')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=writing, text=True
    ) as process:
        os.close(writing)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "through\n"
        first = os.read(reading, 1 << 20)
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(30) == 0
        with os.fdopen(reading, "rb") as rest:
            lines = [json.loads(line) for line in (first + rest.read()).splitlines()]
    dropped = next(line for line in lines if "dropped" in line["message"])
    assert [line["message"] for line in lines[-1:]] == ["read again"]
    assert len(lines) - 2 + dropped["count"] == 5000
