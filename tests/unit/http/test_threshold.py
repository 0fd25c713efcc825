"""What a server answers while it reads its log again."""

from msgspec import json

from driftq.config import Settings
from driftq.engine.ingest import make_rows
from driftq.http.app import App
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.threshold import Threshold
from driftq.model.topic import Durability, TopicConfig
from driftq.server import Server
from driftq.testing import CrashMode, ManualClock, ManualRuntime, SimDisk

WRITES = 3000


def a_server_with_a_long_log() -> Server:
    """Not recovered yet, on a disk with enough frames for some steps."""
    disk, runtime = SimDisk(), ManualRuntime(ManualClock())
    first = Server(Settings(data_dir="/data"), disk, runtime.clock, runtime)
    first.engine.put_topic("a", TopicConfig(durability=Durability.FSYNC))
    for number in range(WRITES):
        first.engine.append("a", make_rows([b"%d" % number]), key=str(number))
    runtime.run_until_idle()
    again = ManualRuntime(runtime.clock)
    return Server(Settings(data_dir="/data"), disk.crash(CrashMode.KEEP, 0), again.clock, again, recover=False)


def ask(threshold: Threshold, path: str, method: str = "GET") -> Reply:
    answer = threshold.handle(Request(method, path))
    assert isinstance(answer, Reply)
    return answer


def test_probes_are_answered_and_the_rest_is_refused_with_the_progress() -> None:
    server = a_server_with_a_long_log()
    threshold = Threshold(server)
    seen = []
    for _ in server.recover():
        assert ask(threshold, "/healthz").status == 200
        assert b"driftq_ready 0\n" in ask(threshold, "/v0/metrics").body
        for method, path in (("GET", "/v0/ready"), ("POST", "/v0/topics/a"), ("GET", "/v0/nowhere")):
            reply = ask(threshold, path, method)
            assert (reply.status, dict(reply.headers)[b"retry-after"]) == (503, b"1")
            error = json.decode(reply.body)["error"]
            assert error["code"] == "not_ready"
        seen.append(error["detail"]["replay_progress"])
    assert len(seen) > WRITES // 1024
    assert seen == sorted(seen)
    assert (seen[0] < 1, seen[-1]) == (True, 1.0)


def test_who_came_early_is_passed_on_to_the_app() -> None:
    server = a_server_with_a_long_log()
    threshold = Threshold(server)
    for _ in server.recover():
        pass
    threshold.behind = App(server).handle
    assert ask(threshold, "/v0/ready").status == 200
    assert server.engine.topic("a").head == WRITES


def test_the_broker_says_so_in_its_own_form() -> None:
    server = a_server_with_a_long_log()
    reply = ask(Threshold(server), "/v1/healthz")
    headers = dict(reply.headers)
    assert (reply.status, headers[b"retry-after"], len(headers[b"x-request-id"])) == (503, b"1", 24)
    assert json.decode(reply.body)["error"] == "UNAVAILABLE"
