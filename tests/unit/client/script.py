"""A scripted server for plans: what it answers is a list, what it was asked is kept."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from msgspec.json import decode, encode

from driftq.client.errors import TransportError
from driftq.client.transport.calls import Calls
from driftq.client.transport.plan import Action, Emit, Flow, Open, Pause, Plan, Request, Response, Shut
from driftq.client.transport.retry import Retries

T = TypeVar("T")


class CountingEntropy:
    """Bytes that differ from call to call, and are the same in every run."""

    def __init__(self) -> None:
        self._calls = 0

    def token(self, size: int) -> bytes:
        """The number of the call."""
        self._calls += 1
        return bytes([self._calls % 256]) * size


def calls(count: int = 3, *, patience_s: float = 60.0) -> Calls:
    """How a client makes its calls, with known pauses and keys."""
    return Calls(Retries(count=count), CountingEntropy(), patience_s)


def reply(status: int, body: object = None, **headers: str) -> Response:
    """An answer with a JSON body."""
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status, names, b"" if body is None else encode(body))


def refused(status: int, code: str, **headers: str) -> Response:
    """An answer in the envelope of v0."""
    return reply(status, {"error": {"code": code, "message": "no"}}, **headers)


CUT = TransportError("cut off", sent=True)
UNREACHED = TransportError("refused", sent=False)


class Script:
    """Performs a plan by handing out outcomes, one for each request, opening or pull."""

    def __init__(self, *outcomes: Response | bytes | TransportError) -> None:
        self._outcomes = list(outcomes)
        self.asked: list[Request] = []
        self.pauses: list[float] = []
        self.shut = 0

    def run(self, plan: Plan[T]) -> T:
        """The answer of a plan."""
        outcome: Any = None
        try:
            while True:
                outcome = self._perform(self._next(plan, outcome))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def items(self, flow: Flow[T]) -> list[T]:
        """The items of a flow, until it ends or the script does."""
        return list(self.each(flow))

    def each(self, flow: Flow[T]) -> Iterator[T]:
        """The same, one by one."""
        outcome: Any = None
        try:
            while True:
                action = self._next(flow, outcome)
                if isinstance(action, Emit):
                    yield action.item
                    outcome = None
                else:
                    outcome = self._perform(action)
        except (StopIteration, IndexError):
            flow.close()

    def bodies(self) -> Iterable[Any]:
        """What was sent, decoded."""
        return [decode(one.content) if isinstance(one.content, bytes) else None for one in self.asked]

    @staticmethod
    def _next(plan: Any, outcome: Any) -> Any:
        return plan.throw(outcome) if isinstance(outcome, TransportError) else plan.send(outcome)

    def _perform(self, action: Action) -> object:
        if isinstance(action, Pause):
            self.pauses.append(action.seconds)
            return None
        if isinstance(action, Shut):
            self.shut += 1
            return None
        if isinstance(action, Request | Open):
            self.asked.append(action.request if isinstance(action, Open) else action)
        return self._outcomes.pop(0)
