"""A router behind an address: a language model reads each message and says which kind of task it is.

    POST {"topic", "message": {"key", "value", "envelope"?}}  →  {"label", "target_topic", "meta": {"score"}}, or 204

A message goes to `<topic>.<label>` if the model is sure enough, and else where its producer sent it. A model that fails
is answered with 502; the broker then goes on without a decision, or refuses, as its operator said (`--router-fail`).
"""

import sys
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple, Protocol

from msgspec import DecodeError, Struct, ValidationError, json

LABELS = ("summarize", "translate", "code")
SURE = 0.6


class Verdict(NamedTuple):
    """What a model says, and how sure it is: 0 to 1."""

    label: str
    score: float


class Model(Protocol):
    """Sorts texts."""

    def classify(self, text: str, labels: Sequence[str]) -> Verdict:
        """One of the labels."""
        ...


class PromptModel:
    """Any language model, given a function that completes a prompt."""

    def __init__(self, complete: Callable[[str], str]) -> None:
        self._complete = complete

    def classify(self, text: str, labels: Sequence[str]) -> Verdict:
        """Ask for a word and a number. An answer of any other form is a verdict nobody is sure of."""
        prompt = f"Which of {', '.join(labels)} does this ask for? Answer: label score\n\n{text}"
        label, _, score = self._complete(prompt).strip().partition(" ")
        try:
            return Verdict(label, float(score)) if label in labels else Verdict("", 0.0)
        except ValueError:
            return Verdict("", 0.0)


class StubModel:
    """No model at all: a label that stands in the text."""

    def classify(self, text: str, labels: Sequence[str]) -> Verdict:
        """The first label that the text names."""
        found = [label for label in labels if label in text.lower()]
        return Verdict(found[0], 0.9) if found else Verdict("", 0.0)


class _Message(Struct):
    value: str


class _Asked(Struct):
    topic: str
    message: _Message


class _Decision(Struct):
    label: str
    target_topic: str
    meta: dict[str, str]


def serve(model: Model, port: int = 0) -> ThreadingHTTPServer:
    """A server for this model; `serve_forever` runs it."""

    class Handler(BaseHTTPRequestHandler):
        """Answers POSTs."""

        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            """One message."""
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            try:
                asked = json.decode(body, type=_Asked)
            except (DecodeError, ValidationError):
                self._answer(400)
                return
            try:
                verdict = model.classify(asked.message.value, LABELS)
            except Exception:  # noqa: BLE001  # whatever a model raises, the broker is told that there is no decision
                self._answer(502)
                return
            if verdict.score < SURE:
                self._answer(204)
                return
            meta = {"score": f"{verdict.score:.2f}"}
            self._answer(200, json.encode(_Decision(verdict.label, f"{asked.topic}.{verdict.label}", meta)))

        def _answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            if status != 204:
                self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is http.server's
            """Say nothing: a line per message is too much."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


if __name__ == "__main__":
    serve(StubModel(), int(sys.argv[1])).serve_forever()
