"""What a server answers while it reads its log again."""

from msgspec import json

from driftq.codec.write_body import make_rows
from driftq.config import Settings
from driftq.http.app import App
from driftq.http.keys import ApiKeys
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.starting_app import StartingApp
from driftq.model.topic_config import Durability, TopicConfig
from driftq.server import Server
from driftq.testing import CrashMode, ManualClock, ManualRuntime, SimDisk

WRITES = 3000
PROBES = ("/v0/health", "/healthz", "/v0/ready", "/readyz")


def a_server_with_a_long_log(*, probe_auth: bool = False) -> Server:
    """Not recovered yet, on a disk with enough frames for some steps."""
    disk, runtime = SimDisk(), ManualRuntime(ManualClock())
    first = Server(Settings(data_dir="/data"), disk, runtime.clock, runtime)
    first.engine.put_topic("a", TopicConfig(durability=Durability.FSYNC))
    for number in range(WRITES):
        first.engine.append("a", make_rows([b"%d" % number]), key=str(number))
    runtime.run_until_idle()
    again = ManualRuntime(runtime.clock)
    settings = Settings(data_dir="/data", probe_auth=probe_auth)
    return Server(settings, disk.crash(CrashMode.KEEP, 0), again.clock, again, recover=False)


def ask(starting: StartingApp, path: str, method: str = "GET", key: str | None = None) -> Reply:
    path, _, query = path.partition("?")
    headers = [] if key is None else [(b"authorization", b"Bearer " + key.encode())]
    answer = starting.handle(Request(method, path, query, headers))
    assert isinstance(answer, Reply)
    return answer


def test_probes_are_answered_and_the_rest_is_refused_with_the_progress() -> None:
    server = a_server_with_a_long_log()
    starting = StartingApp(server)
    seen = []
    for _ in server.recover():
        assert ask(starting, "/healthz").status == 200
        assert b"driftq_ready 0\n" in ask(starting, "/v0/metrics").body
        for method, path in (("GET", "/v0/ready"), ("POST", "/v0/topics/a"), ("GET", "/v0/nowhere")):
            reply = ask(starting, path, method)
            assert (reply.status, dict(reply.headers)[b"retry-after"]) == (503, b"1")
            error = json.decode(reply.body)["error"]
            assert error["code"] == "not_ready"
        seen.append(error["detail"]["replay_progress"])
    assert len(seen) > WRITES // 1024
    assert seen == sorted(seen)
    assert (seen[0] < 1, seen[-1]) == (True, 1.0)


def test_who_came_early_is_passed_on_to_the_app() -> None:
    server = a_server_with_a_long_log()
    starting = StartingApp(server)
    for _ in server.recover():
        pass
    starting.app = App(server)
    assert ask(starting, "/v0/ready").status == 200
    assert server.engine.topic("a").head == WRITES


def test_the_broker_says_so_in_its_own_form() -> None:
    server = a_server_with_a_long_log()
    reply = ask(StartingApp(server), "/v1/healthz")
    headers = dict(reply.headers)
    assert (reply.status, headers[b"retry-after"], reply.plain) == (503, b"1", True)
    assert json.decode(reply.body)["error"] == "UNAVAILABLE"


def test_keys_are_asked_for_as_they_are_later() -> None:
    """The figures always, the probes where the settings say so; who asks for anything else hears what he always did."""
    keys = ApiKeys.parse("reader:read,writer:write")
    server = a_server_with_a_long_log()
    starting = StartingApp(server, keys)
    assert [ask(starting, "/v0/metrics", key=key).status for key in (None, "nobody", "writer", "reader")] == [
        401,
        401,
        403,
        200,
    ]
    assert ask(starting, "/v0/metrics?token=reader").status == 401
    assert [ask(starting, path).status for path in PROBES] == [200, 200, 503, 503]
    assert ask(starting, "/v0/topics").status == 503

    guarded = StartingApp(a_server_with_a_long_log(probe_auth=True), keys)
    assert [ask(guarded, path).status for path in PROBES] == [401] * 4
    assert [ask(guarded, path, key="writer").status for path in PROBES] == [200, 200, 503, 503]
    refused = ask(guarded, "/readyz")
    assert json.decode(refused.body)["error"]["code"] == "unauthorized"


def test_the_figures_are_json_for_who_wants_it() -> None:
    starting = StartingApp(a_server_with_a_long_log())
    reply = starting.handle(Request("GET", "/v0/metrics", headers=[(b"accept", b"application/json")]))
    assert isinstance(reply, Reply)
    figures = json.decode(reply.body)
    assert (figures["ready"], figures["replay_progress"]) == (False, 0.0)
    assert figures.keys() == {"ready", "replay_progress", "uptime_ms"}
