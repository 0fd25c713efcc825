"""The router hook: what it may say, what its failures cost, and how it is found."""

import sys
from pathlib import Path
from typing import Any

import pytest

from driftq.errors import NotReadyError, StartError
from driftq.features.broker.producer.router_hook import RouterHook, load_router
from driftq.features.broker.producer.router_webhook import WebhookRouter
from driftq.model.broker_settings import BrokerSettings
from driftq.model.message import Envelope, Message, RoutingDecision
from driftq.system.runtime import Pending
from driftq.testing import ManualClock, ManualRuntime
from tests.unit.features.broker.coroutines import Coroutines

MESSAGE = Message("v", "key", Envelope(labels={"a": "b"}))


class _Router:
    def __init__(self, answer: object = None) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Message]] = []

    async def route(self, topic: str, message: Message) -> Any:
        self.asked.append((topic, message))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer == "hang":
            await Pending[None]()
        return self.answer


class _World:
    def __init__(self, answer: object, **settings: Any) -> None:
        self.clock = ManualClock()
        self.runtime = ManualRuntime(self.clock)
        self.router = _Router(answer)
        self.coroutines = Coroutines(self.runtime)
        self.hook = RouterHook(self.router, BrokerSettings(**settings), self.runtime, self.clock, self.coroutines)

    def ask(self, wait_ms: int = 0) -> RoutingDecision | None:
        answer = self.hook.route("t", MESSAGE)
        self.runtime.advance(wait_ms)
        return answer.result()


def test_a_decision_is_passed_on_and_the_message_is_a_copy() -> None:
    """inv1: 71"""
    decision = RoutingDecision("label", "other", 0, {"k": "v"})
    world = _World(decision)
    assert world.ask() is decision
    ((topic, message),) = world.router.asked
    assert (topic, message) == ("t", MESSAGE)
    assert message.envelope is not None
    message.envelope.labels["a"] = "changed"
    assert MESSAGE.envelope is not None
    assert MESSAGE.envelope.labels == {"a": "b"}


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (RuntimeError("boom"), "error"),
        (42, "invalid"),
        ({"label": "a dict"}, "invalid"),
        (RoutingDecision(label=1), "invalid"),  # type: ignore[arg-type]
        (RoutingDecision(partition_override=True), "invalid"),
        (RoutingDecision(meta={"k": 1}), "invalid"),  # type: ignore[dict-item]
        (RoutingDecision(meta=None), "invalid"),  # type: ignore[arg-type]
        (RoutingDecision(label="half a pair \ud83d"), "invalid"),
        (RoutingDecision(target_topic="\ud83d"), "invalid"),
        (RoutingDecision(meta={"k": "\ud83d"}), "invalid"),
        ("hang", "timeout"),
    ],
)
def test_a_failure_is_counted_and_leaves_all_to_the_producer(answer: object, kind: str) -> None:
    """inv1: 71"""
    world = _World(answer, router_timeout_ms=700)
    assert world.ask(700) is None
    assert world.hook.errors == {kind: 1}


def test_a_failure_refuses_the_produce_where_the_operator_said_so() -> None:
    world = _World(RuntimeError("boom"), router_fail="closed")
    with pytest.raises(NotReadyError):
        world.ask()
    assert world.hook.errors == {"error": 1}


def test_no_answer_in_time_cancels_the_question_and_a_late_one_is_not_heard() -> None:
    world = _World("hang", router_timeout_ms=700)
    answer = world.hook.route("t", MESSAGE)
    world.runtime.advance(699)
    assert not answer.settled
    world.runtime.advance(1)
    assert answer.result() is None
    assert world.coroutines.cancelled == 1
    good = _World(None, router_timeout_ms=700)
    assert good.ask(1000) is None
    assert (good.coroutines.cancelled, good.hook.errors) == (0, {})


def test_many_failures_are_few_lines_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    world = _World(RuntimeError("boom"))
    for _ in range(100):
        world.ask()
    world.clock.advance(1000)
    world.ask()
    assert len(caplog.records) == 2
    assert "101 failures" in caplog.text


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "some_router.py").write_text(
        "class Router:\n    def route(self, topic, message): ...\n"
        "router = Router()\ndef factory(): return router\nnothing = 1\nclass box: inner = router\n"
    )
    monkeypatch.delitem(sys.modules, "some_router", raising=False)
    return tmp_path


@pytest.mark.parametrize("attribute", ["router", "Router", "factory", "box.inner"])
def test_a_router_is_an_object_a_class_or_a_factory(modules: Path, attribute: str) -> None:
    found = load_router(BrokerSettings(router=f"some_router:{attribute}"))
    assert type(found).__name__ == "Router"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"router": "some_router"}, "module:attribute"),
        ({"router": "no_such_module_anywhere:router"}, "cannot be loaded"),
        ({"router": "some_router:absent"}, "cannot be loaded"),
        ({"router": "some_router:nothing"}, "no method"),
        ({"router_url": "ftp://host/"}, "not an http"),
        ({"router": "some_router:router", "router_url": "http://host/"}, "both"),
    ],
)
def test_a_router_that_cannot_be_used_refuses_the_start(modules: Path, settings: dict[str, str], why: str) -> None:
    with pytest.raises(StartError, match=why):
        load_router(BrokerSettings(**settings))  # type: ignore[arg-type]


def test_an_address_is_a_router_and_nothing_is_none() -> None:
    assert isinstance(load_router(BrokerSettings(router_url="http://127.0.0.1:1/")), WebhookRouter)
    assert load_router(BrokerSettings()) is None
