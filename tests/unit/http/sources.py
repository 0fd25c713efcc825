"""Sources that a test speaks through."""

from driftq.http.answer import Sink, SocketSink


class Voice:
    """A stream's source that notes what happens to it."""

    def __init__(self, *first: bytes) -> None:
        self.first = first
        self.heard: list[str] = []
        self.sink: Sink | None = None

    def opened(self, sink: Sink) -> None:
        self.heard.append("opened")
        self.sink = sink
        for data in self.first:
            sink.write(data)

    def room(self) -> None:
        self.heard.append("room")

    def closed(self) -> None:
        self.heard.append("closed")

    def goodbye(self) -> None:
        self.heard.append("goodbye")
        self.say(b"bye")
        assert self.sink is not None
        self.sink.close()

    def say(self, data: bytes) -> None:
        assert self.sink is not None
        self.sink.write(data)


class Talk:
    """A WebSocket's source that notes what happens to it."""

    def __init__(self) -> None:
        self.heard: list[str | bytes] = []
        self.sink: SocketSink | None = None

    def opened(self, sink: SocketSink) -> None:
        self.heard.append("opened")
        self.sink = sink

    def received(self, message: str | bytes) -> None:
        self.heard.append(message)

    def room(self) -> None:
        self.heard.append("room")

    def closed(self) -> None:
        self.heard.append("closed")

    def goodbye(self) -> None:
        assert self.sink is not None
        self.sink.send(b"bye")
        self.sink.close(1001)
