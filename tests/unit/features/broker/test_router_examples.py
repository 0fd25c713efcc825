"""The two routers we ship as examples do what their descriptions say."""

import asyncio
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from driftq.features.broker.producer.router_hook import MessageRouter, load_router
from driftq.features.broker.producer.router_webhook import WebhookError, WebhookRouter
from driftq.model.broker_settings import BrokerSettings
from driftq.model.message import Envelope, Message, RoutingDecision
from driftq.system.http_client.json_post import PostError

EXAMPLES = Path(__file__).parents[4] / "examples" / "routers"


def _decide(router: MessageRouter, topic: str, message: Message) -> RoutingDecision | None:
    async def ask() -> RoutingDecision | None:
        try:
            return await router.route(topic, message)
        finally:
            if isinstance(router, WebhookRouter):
                router.close()

    return asyncio.run(ask())


def _module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# The rule table


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> MessageRouter:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("RULES", str(EXAMPLES / "rules.json"))
    found = load_router(BrokerSettings(router="rule_table:router"))
    assert found is not None
    return found


def test_the_first_rule_that_fits_decides(table: MessageRouter) -> None:
    vip = Message("refund, please", envelope=Envelope(tenant_id="vip"))
    assert _decide(table, "orders.eu", vip) == RoutingDecision("fast lane", "orders.vip")
    plain = Message("refund, please")
    assert _decide(table, "orders.eu", plain) == RoutingDecision("refund", meta={"team": "billing"})
    assert _decide(table, "events", Message("v", "eu-1")) == RoutingDecision(partition_override=0)


def test_where_no_rule_fits_the_producer_decides(table: MessageRouter) -> None:
    assert _decide(table, "events", Message("v", "us-1")) is None


# The classifier


class _Serving:
    def __init__(self, module: ModuleType, model: Any) -> None:
        self.server = module.serve(model)
        self._thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def router(self) -> WebhookRouter:
        return WebhookRouter(f"http://127.0.0.1:{self.server.server_address[1]}/decide")

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def classifier() -> ModuleType:
    return _module("classifier")


@pytest.fixture
def stub(classifier: ModuleType) -> Iterator[_Serving]:
    serving = _Serving(classifier, classifier.StubModel())
    yield serving
    serving.stop()


def test_the_stub_sends_a_message_where_its_kind_of_task_is_done(stub: _Serving) -> None:
    found = _decide(stub.router, "tasks", Message("Please translate this"))
    assert found == RoutingDecision("translate", "tasks.translate", None, {"score": "0.90"})
    assert _decide(stub.router, "tasks", Message("hello")) is None


def test_one_connection_serves_many_questions(stub: _Serving) -> None:
    router = stub.router

    async def ask() -> list[RoutingDecision | None]:
        found = [await router.route("tasks", Message("write code")) for _ in range(20)]
        router.close()
        return found

    assert [found and found.label for found in asyncio.run(ask())] == ["code"] * 20


def test_a_prompt_model_is_believed_only_when_it_answers_in_form(classifier: ModuleType) -> None:
    prompts: list[str] = []

    def complete(prompt: str) -> str:
        prompts.append(prompt)
        return answer

    model = classifier.PromptModel(complete)
    verdicts = {}
    for answer in ("code 0.8", "poetry 0.9", "code very", "code"):
        verdicts[answer] = tuple(model.classify("do it", classifier.LABELS))
    assert verdicts == {"code 0.8": ("code", 0.8), "poetry 0.9": ("", 0), "code very": ("", 0), "code": ("", 0)}
    assert "do it" in prompts[0]
    assert "translate" in prompts[0]


def test_a_model_that_fails_is_an_error_of_the_router(classifier: ModuleType) -> None:
    class Broken:
        def classify(self, text: str, labels: object) -> object:
            raise RuntimeError("out of tokens")

    serving = _Serving(classifier, Broken())
    try:
        with pytest.raises(WebhookError, match="502"):
            _decide(serving.router, "tasks", Message("code"))
    finally:
        serving.stop()


def test_an_address_where_nobody_answers_is_an_error_of_the_router() -> None:
    with pytest.raises(PostError, match="cannot be reached"):
        _decide(WebhookRouter("http://127.0.0.1:1/"), "tasks", Message("code"))
