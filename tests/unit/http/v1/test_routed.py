"""A whole server with a router hook."""

import pytest

from driftq import server
from driftq.features.broker.producer.router_hook import RouterHook
from driftq.model.broker_settings import BrokerSettings
from driftq.model.message import Message, RoutingDecision
from driftq.system.clock import Clock
from driftq.system.runtime import Pending
from driftq.testing import ManualRuntime
from tests.unit.features.broker.coroutines import Coroutines
from tests.unit.http.v1.client import Client, message


class _Router:
    """Answers what the test says."""

    def __init__(self) -> None:
        self.answer: RoutingDecision | Exception | None = None

    async def route(self, _topic: str, _message: Message) -> RoutingDecision | None:
        if isinstance(self.answer, TimeoutError):
            await Pending[None]()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> _Router:
    router = _Router()

    def make(settings: BrokerSettings, runtime: ManualRuntime, clock: Clock) -> RouterHook:
        return RouterHook(router, settings, runtime, clock, Coroutines(runtime))

    monkeypatch.setattr(server, "make_hook", make)
    return router


@pytest.fixture
def client(router: _Router) -> Client:  # the server is made with it
    client = Client()
    for topic in ("t", "mine", "theirs"):
        client.create(topic, 3)
    return client


def test_the_routers_word_beats_the_producers(client: Client, router: _Router) -> None:
    """inv1: 71"""
    router.answer = RoutingDecision("label", "theirs", 2, {"k": "v"})
    client.produce("v", key="a", target_topic="mine", partition_override=1)
    assert (client.all("t"), client.all("mine")) == ([], [])
    (found,) = client.all("theirs")
    assert found["partition"] == 2
    assert found["routing"] == {"label": "label", "meta": {"k": "v"}}
    assert found["envelope"] == {"target_topic": "theirs", "partition_override": 2}
    router.answer = RoutingDecision(target_topic="nowhere")
    assert message(client.offer()) == (400, "topic does not exist (create it first)")


def test_a_router_that_raises_or_hangs_leaves_all_to_the_producer(client: Client, router: _Router) -> None:
    """inv1: 71"""
    router.answer = RuntimeError("boom")
    client.produce("raised", target_topic="mine", partition_override=1)
    router.answer = TimeoutError()
    body = {"topic": "t", "value": "hung", "envelope": {"target_topic": "mine", "partition_override": 1}}
    answer = client.send("POST", "/v1/produce", body)
    client.advance(1999)
    assert client.all("mine")[1:] == []
    client.advance(1)
    assert isinstance(answer, Pending)
    assert answer.result().status == 200
    for found, value in zip(client.all("mine"), ("raised", "hung"), strict=True):
        assert (found["value"], found["partition"], "routing" in found) == (value, 1, False)
