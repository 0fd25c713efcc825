"""`GET /metrics` (http-v1 §17): the four metrics that the broker's clients know, then all other metrics."""

from collections.abc import Iterator

from driftq.http.access import Scope
from driftq.http.metrics.prometheus_text import CONTENT_TYPE, Family, Sample, counter, encode, gauge
from driftq.http.metrics.server_metrics import families
from driftq.http.metrics.server_vitals import vital_families
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route
from driftq.http.v1.params import may_name
from driftq.model.v1_answers import GroupRow
from driftq.server import Server


class BrokerMetricsEndpoint:
    """The handler of `GET /metrics`."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def routes(self) -> list[Route]:
        """Return the route of the metrics page."""
        return [Route("GET", "/metrics", self.get, Scope.READ)]

    def get(self, request: Request) -> Reply:
        """Return every group in every partition, zeros included. A counter appears with its first increment."""
        groups = [found for found in self._server.broker.groups(ages=False) if may_name(request, found.topic)]
        page = encode(
            [*self._broker(request, groups), *families(self._server.figures()), *vital_families(self._server)]
        )
        return Reply(200, page, CONTENT_TYPE)

    def _broker(self, request: Request, groups: list[GroupRow]) -> Iterator[Family]:
        open_now: list[Sample] = []
        lag: list[Sample] = []
        for group in groups:
            for row in group.partitions:
                labels = {"topic": group.topic, "group": group.group, "partition": str(row.partition)}
                open_now.append(Sample(row.in_flight + row.waiting, labels))
                lag.append(Sample(row.lag, labels))
        yield Family(
            "inflight_messages",
            "gauge",
            "Messages that were delivered and are not done, including those that wait for a retry.",
            open_now,
        )
        yield Family("consumer_lag", "gauge", "Messages that are stored and not done, including those in flight.", lag)
        counters = self._server.broker.counters
        dead = [
            Sample(count, {"topic": topic, "reason": reason})
            for (topic, reason), count in counters.dead_letters.items()
            if may_name(request, topic)
        ]
        yield Family(
            "dlq_messages_total", "counter", "Messages that became dead letters, by source topic and reason.", dead
        )
        rejected = [Sample(count, {"reason": limit}) for limit, count in counters.rejected.items()]
        yield Family(
            "produce_rejected_total",
            "counter",
            "Messages that were refused because a partition's buffer was full, by limit.",
            rejected,
        )
        yield counter(
            "driftq_redeliveries_total", "Deliveries of a message after its first delivery.", counters.redeliveries
        )
        yield counter(
            "driftq_idempotent_skips_total",
            "Messages that were skipped because the work of their idempotency key was done.",
            counters.skips,
        )
        failures = {} if self._server.hook is None else self._server.hook.errors
        failed = [Sample(count, {"kind": kind}) for kind, count in sorted(failures.items())]
        yield Family("driftq_router_errors_total", "counter", "Failures of the router hook.", failed)
        yield gauge("driftq_streams", "Open streams of the broker.", sum(group.streams for group in groups))
