"""The router hook (http-v1 §14): code of a user that decides where a message goes, before it is stored.

The hook runs on its own thread (`system/loop_thread`), with a copy of the message, and must answer within
`router_timeout_ms`. Its result is checked here: anything but a decision or None is a failure. A failure is logged and
counted; the operator chooses whether the produce then continues without a decision or is refused.
"""

import importlib
import logging
from collections import Counter
from collections.abc import Awaitable
from inspect import isawaitable
from typing import Protocol

from msgspec import msgpack

from driftq.errors import NotReadyError, StartError
from driftq.model.broker_settings import BrokerSettings
from driftq.model.message import Message, RoutingDecision
from driftq.system.clock import Clock
from driftq.system.loop_thread import Coroutines, LoopThread
from driftq.system.runtime import Pending, Runtime

_QUIET_NS = 1_000_000_000
"""Failures within this time, in nanoseconds, are logged as one line."""
_PARTITION_MAX = (1 << 31) - 1

_log = logging.getLogger(__name__)
_copy = msgpack.Decoder(Message)


class MessageRouter(Protocol):
    """The object that `--router module:attribute` names."""

    def route(self, topic: str, message: Message) -> Awaitable[RoutingDecision | None]:
        """Return where a message for this topic goes; None leaves the decision to its producer."""
        ...


def load_router(settings: BrokerSettings) -> MessageRouter | None:
    """Return the router that the settings name, or None. Raise StartError."""
    if settings.router and settings.router_url:
        raise StartError("--router and --router-url cannot both be given")
    if settings.router_url:
        from driftq.features.broker.producer.router_webhook import WebhookRouter

        try:
            return WebhookRouter(settings.router_url)
        except ValueError as error:
            raise StartError(f"--router-url cannot be used: {error}") from None
    return _import(settings.router) if settings.router else None


def _import(name: str) -> MessageRouter:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise StartError(f"--router is {name!r}; expected module:attribute")
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
        if callable(found) and (isinstance(found, type) or not hasattr(found, "route")):
            found = found()
    except Exception as error:
        raise StartError(f"the router {name!r} cannot be loaded: {error}") from error
    if not callable(getattr(found, "route", None)):
        raise StartError(f"the router {name!r} has no method `route`")
    return found  # type: ignore[return-value]  # checked above


def make_hook(settings: BrokerSettings, runtime: Runtime, clock: Clock) -> "RouterHook | None":
    """Return a hook with its own thread for the router that the settings name, or None. Raise StartError."""
    router = load_router(settings)
    if router is None:
        return None
    return RouterHook(router, settings, runtime, clock, LoopThread(runtime, "driftq-router"))


class RouterHook:
    """Calls a router and checks its decisions."""

    def __init__(
        self, router: MessageRouter, settings: BrokerSettings, runtime: Runtime, clock: Clock, coroutines: Coroutines
    ) -> None:
        self._router = router
        self._timeout_ms = settings.router_timeout_ms
        self._refuses = settings.router_fail == "closed"
        self._runtime = runtime
        self._clock = clock
        self._coroutines = coroutines
        self._told_ns: int | None = None
        self.errors: Counter[str] = Counter()
        """Failures by kind: error, timeout, invalid."""

    def route(self, topic: str, message: Message) -> Pending[RoutingDecision | None]:
        """Call the router. The answer fails with NotReadyError if a failing router has to refuse produces."""
        answer: Pending[RoutingDecision | None] = Pending()
        private = _copy.decode(msgpack.encode(message))

        async def ask() -> object:
            found: object = self._router.route(topic, private)
            return await found if isawaitable(found) else found

        def ended(value: object, error: BaseException | None) -> None:
            if answer.settled:
                return
            timer.cancel()
            if error is not None:
                self._fail(answer, "error", f"it raised {type(error).__name__}: {error}")
            elif (wrong := _wrong(value)) is not None:
                self._fail(answer, "invalid", wrong)
            else:
                answer.resolve(value)  # type: ignore[arg-type]  # checked above

        def late() -> None:
            if not answer.settled:
                cancel()
                self._fail(answer, "timeout", f"it took more than {self._timeout_ms} ms")

        timer = self._runtime.later(self._timeout_ms, late)
        cancel = self._coroutines.start(ask, ended)
        return answer

    def close(self) -> None:
        """Stop the thread of the router."""
        self._coroutines.close()

    def _fail(self, answer: Pending[RoutingDecision | None], kind: str, why: str) -> None:
        self.errors[kind] += 1
        now_ns = self._clock.monotonic_ns()
        if self._told_ns is None or now_ns - self._told_ns >= _QUIET_NS:
            self._told_ns = now_ns
            _log.warning("the router failed: %s (%d failures since the start)", why, self.errors.total())
        if self._refuses:
            answer.fail(NotReadyError("the router failed; the message was not stored", retry_after_ms=1000))
        else:
            answer.resolve(None)


def _wrong(decision: object) -> str | None:
    """Return what is wrong with a decision, or None."""
    if decision is None:
        return None
    if not isinstance(decision, RoutingDecision):
        return f"it returned {type(decision).__name__}, not a RoutingDecision"
    if not _are_texts(decision.label, decision.target_topic):
        return "label and target_topic must be valid Unicode strings"
    partition: object = decision.partition_override
    if partition is not None and (type(partition) is not int or abs(partition) > _PARTITION_MAX):
        return "partition_override must be an integer of 32 bits or None"
    meta: object = decision.meta
    if not isinstance(meta, dict) or not all(_are_texts(*item) for item in meta.items()):
        return "meta must be a dict of valid Unicode strings"
    return None


def _are_texts(*values: object) -> bool:
    """Whether all values are strings that can be stored. Half a surrogate pair, which JSON allows, cannot."""
    try:
        for value in values:
            if not isinstance(value, str):
                return False
            value.encode()
    except UnicodeEncodeError:
        return False
    return True
