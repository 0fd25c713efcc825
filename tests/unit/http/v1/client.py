"""A client of the broker API on a whole server in this process, whose time is the test's."""

from typing import Any

from msgspec import json

from driftq.http.answer import StreamAnswer
from driftq.model.broker_settings import DEV_LIMITS, BrokerSettings
from driftq.testing import Asked, KeptSink, ServerRig


class Consumer:
    """One open stream, and who reads it."""

    def __init__(
        self, client: "Client", topic: str, group: str, owner: str, stream: StreamAnswer, sink: KeptSink
    ) -> None:
        self.topic, self.group, self.owner = topic, group, owner
        self.sink = sink
        self._client = client
        self._stream = stream

    def take(self) -> list[dict[str, Any]]:
        """The messages that came since the last time."""
        self._client.run()
        return [json.decode(line) for line in self.sink.taken().splitlines() if line]

    def one(self) -> dict[str, Any]:
        """The only one that came."""
        (found,) = self.take()
        return found

    def offsets(self) -> list[int]:
        return [item["offset"] for item in self.take()]

    def values(self) -> list[str]:
        return [item["value"] for item in self.take()]

    def settle(self, verb: str, offset: int, partition: int = 0, **fields: Any) -> Asked:
        """Ack or nack; the whole answer."""
        place = {"topic": self.topic, "group": self.group, "owner": self.owner}
        return self._client.ask("POST", f"/v1/{verb}", place | {"partition": partition, "offset": offset} | fields)

    def ack(self, offset: int, partition: int = 0) -> None:
        assert self.settle("ack", offset, partition).status == 204

    def nack(self, offset: int, reason: str = "", partition: int = 0) -> None:
        assert self.settle("nack", offset, partition, reason=reason).status == 204

    def close(self) -> None:
        """The client hangs up."""
        self._stream.source.closed()
        self._client.run()


class Client(ServerRig):
    """Short words for the calls. `limits` of the broker are given by name; `dev` is the preset."""

    def __init__(self, *, dev: bool = False, wrap: Any = lambda disk: disk, disk: Any = None, **limits: Any) -> None:
        preset: dict[str, Any] = {**DEV_LIMITS, "dev_limits": True} if dev else {}
        self._readers = 0
        super().__init__(broker=BrokerSettings(**(preset | limits)), wrap=wrap, disk=disk)

    def create(self, topic: str = "t", partitions: int | None = None) -> int:
        """The number of partitions that the answer tells."""
        status, body = self.ask("POST", "/v1/topics", {"name": topic, "partitions": partitions})
        assert (status, body["status"], body["name"]) == (201, "created", topic)
        return int(body["partitions"])

    def offer(self, value: Any = "v", topic: str = "t", key: str = "", **envelope: Any) -> Asked:
        """Produce; the whole answer."""
        body = {"topic": topic, "key": key, "value": value, "envelope": envelope or None}
        return self.ask("POST", "/v1/produce", body)

    def produce(self, *values: str, topic: str = "t", key: str = "", **envelope: Any) -> None:
        """Produce, successfully."""
        for value in values:
            assert self.offer(value, topic, key, **envelope) == (200, {"status": "produced", "topic": topic})

    def consume(
        self, topic: str = "t", group: str = "g", owner: str = "a", *, lease_ms: int = 60_000, credit: int = 1000
    ) -> Consumer:
        path = f"/v1/consume?topic={topic}&group={group}&owner={owner}&lease_ms={lease_ms}&max_in_flight={credit}"
        return Consumer(self, topic, group, owner, *self.stream(path))

    def all(self, topic: str = "t") -> list[dict[str, Any]]:
        """Every message of a topic, as a group gets it that nobody has heard of before."""
        self._readers += 1
        reader = self.consume(topic, f"reader{self._readers}")
        found = reader.take()
        reader.close()
        return found

    def topics(self) -> list[str]:
        found: list[str] = self.ok("GET", "/v1/topics")["topics"]
        return found

    def figure(self, name: str, **labels: str) -> float | None:
        """One number of the metrics, if it stands there."""
        page = self.reply("GET", "/metrics").whole.decode()
        inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
        sample = f"{name}{{{inside}}} " if inside else f"{name} "
        return next((float(line.removeprefix(sample)) for line in page.splitlines() if line.startswith(sample)), None)


def message(asked: Asked) -> tuple[int, str]:
    """Status and text of a refusal, which has a code and a text."""
    assert {"error", "message"} <= set(asked.body), asked
    return asked.status, asked.body["message"]
