"""Who is let in, in which order the checks come, and how much a key may have under way (http-v0 §1.7, §2, §16)."""

from typing import Any

import pytest

from driftq.http.access import Scope
from driftq.http.answer import Answer
from driftq.http.reply import Reply
from driftq.http.request import Request
from driftq.http.routes import Route, RouteTable
from driftq.system.runtime import Pending
from driftq.testing import ServerRig, settled

WRITE = {"records": [{"data": 1}]}


def test_without_keys_the_header_is_ignored() -> None:
    rig = ServerRig()
    assert rig.ask("POST", "/v0/topics/t", WRITE, key="anything").status == 201


@pytest.mark.parametrize("key", [None, "wrong", "", "sesame2", "sesam"])
def test_a_stranger_learns_nothing(key: str | None) -> None:
    rig = ServerRig(keys="sesame", limits={"body_bytes_max": 1000})
    for method, path, raw in (
        ("GET", "/v0/topics", b""),
        ("PATCH", "/v0/topics/t", b""),
        ("POST", "/v0/topics/t/nonsense", b"{}"),
        ("PUT", "/v0/topics/-bad", b"{"),
        ("POST", "/v0/topics/t", b"x" * 2000),
        ("GET", "/v0/nowhere", b""),
        ("GET", "/v0/metrics", b""),
    ):
        status, body = rig.ask(method, path, raw=raw, key=key)
        assert (status, body["error"]["code"], "detail" in body["error"]) == (401, "unauthorized", False)
        assert "sesame" not in str(body)
    assert dict(rig.reply("GET", "/v0/topics", key=key).headers) == {b"www-authenticate": b"Bearer"}


def test_scopes_are_checked_before_body_route_and_topic() -> None:
    rig = ServerRig(keys="root,reader:read,writer:write,deleter:delete,admin:admin")
    rig.ok("PUT", "/v0/topics/t", {}, key="root")
    calls = {
        "reader": [
            ("GET", "/v0/topics"),
            ("GET", "/v0/topics/t"),
            ("POST", "/v0/topics/t/diff"),
            ("GET", "/v0/metrics"),
        ],
        "writer": [("POST", "/v0/topics/t"), ("POST", "/v0/topics/t/nonsense"), ("GET", "/v0/topics/t/nonsense")],
        "deleter": [("POST", "/v0/topics/t/delete"), ("DELETE", "/v0/topics/t")],
        "admin": [("PUT", "/v0/topics/t"), ("PATCH", "/v0/topics/t")],
    }
    for owner, owned in calls.items():
        for method, path in owned:
            for key in calls:
                raw = b"{" if method in ("POST", "PUT", "PATCH") else b""
                status = rig.ask(method, path, raw=raw, key=key).status
                assert (status == 403) == (key != owner), (method, path, key, status)
                assert status != 401


def test_names_are_checked_decoded_also_on_paths_that_are_not_there() -> None:
    """inv: 73"""
    rig = ServerRig(keys="root,mine::a:|b.")
    for name in ("a:1", "a:2", "b.1", "b", "c", "A:1"):
        rig.ok("PUT", f"/v0/topics/{name}", {}, key="root")
    assert rig.ask("PUT", "/v0/topics/a%3Ax", {}, key="mine").body["topic"] == "a:x"
    for path in ("/v0/topics/%63", "/v0/topics/c", "/v0/topics/c/nonsense", "/v0/topics/absent"):
        for method in ("GET", "PUT", "PATCH"):
            assert rig.code(method, path, key="mine") == (403, "forbidden")
    names: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = rig.ok("GET", f"/v0/topics?page_size=1&cursor={cursor}", key="mine")
        names += [row["topic"] for row in page["topics"]]
        cursor = page.get("next_cursor")
    assert names == ["a:1", "a:2", "a:x", "b.1"]


def test_a_config_needs_admin_only_where_it_would_create() -> None:
    rig = ServerRig(keys="root,writer:write")
    with_config = WRITE | {"config": {"ttl_ms": 5}}
    assert rig.code("POST", "/v0/topics/t", with_config, key="writer") == (403, "forbidden")
    assert rig.code("POST", "/v0/topics/t", {"records": [], "config": {}}, key="writer") == (403, "forbidden")
    for bad in (
        {"records": 1, "config": {}},
        WRITE | {"config": {"ttl_ms": -1}},
        WRITE | {"config": {"cap_bytes": 1 << 64}},
    ):
        assert rig.code("POST", "/v0/topics/t", bad, key="writer") == (400, "invalid_request")
    assert rig.code("GET", "/v0/topics/t", key="root") == (404, "topic_not_found")
    assert rig.ask("POST", "/v0/topics/t", WRITE | {"config": None}, key="writer").status == 201
    assert rig.ask("POST", "/v0/topics/t", with_config, key="writer").status == 200
    assert rig.ask("POST", "/v0/topics/new", with_config, key="root").status == 201


def test_a_config_needs_admin_while_its_topic_is_being_deleted() -> None:
    """The write comes behind the deletion, so it would create."""
    rig = ServerRig(keys="root,writer:write")
    rig.ok("PUT", "/v0/topics/t", {}, key="root")
    deleted = rig.send("DELETE", "/v0/topics/t", key="root")
    refused = rig.send("POST", "/v0/topics/t", WRITE | {"config": {"type": "queue"}}, key="writer")
    plain = rig.send("POST", "/v0/topics/t", WRITE, key="writer")
    rig.run()
    replies = [settled(answer) for answer in (deleted, refused, plain)]
    assert [reply.status for reply in replies if reply is not None] == [200, 403, 201]
    assert rig.ok("GET", "/v0/topics/t", key="root")["type"] == "log"


def test_probes_are_open_unless_they_are_not() -> None:
    """inv: 74"""
    for closed, keyless in ((False, 200), (True, 401)):
        rig = ServerRig(keys="sesame,deleter:delete", probe_auth=closed)
        for path in ("/healthz", "/readyz", "/v0/health", "/v0/ready"):
            assert rig.ask("GET", path).status == rig.ask("GET", path, key="wrong").status == keyless
            assert rig.ask("GET", path, key="deleter").status == 200


def test_a_token_in_the_query_opens_the_two_streams_and_nothing_else() -> None:
    """inv: 74"""
    rig = ServerRig(keys="sesame")
    rig.ok("PUT", "/v0/topics/q", {"type": "queue"}, key="sesame")
    stream = rig.ok("POST", "/v0/watch", {"topics": {"q": {}}}, key="sesame")["stream_url"]
    rig.stream(f"{stream}?token=sesame")
    rig.stream("/v0/topics/q/work?node=w&token=sesame")
    for method, path in (
        ("GET", "/v0/topics"),
        ("GET", "/v0/topics/q"),
        ("PUT", "/v0/topics/q"),
        ("POST", "/v0/topics/q"),
        ("DELETE", "/v0/topics/q"),
        ("POST", "/v0/topics/q/diff"),
        ("POST", "/v0/topics/q/delete"),
        ("POST", "/v0/topics/q/claim"),
        ("POST", "/v0/topics/q/ack"),
        ("POST", "/v0/watch"),
        ("GET", "/v0/routers"),
        ("PUT", "/v0/routers/r"),
        ("GET", "/v0/ws"),
        ("GET", "/v0/metrics"),
    ):
        assert rig.code(method, f"{path}?token=sesame") == (401, "unauthorized"), path
    assert rig.ask("GET", "/v0/health").status == 200
    assert rig.code("GET", "/v0/metrics") == (401, "unauthorized")


def poll(rig: ServerRig, key: str) -> tuple[Request, Answer]:
    request = rig.request("POST", "/v0/topics/t/diff", {"wait_ms": 5000}, key=key)
    answer = rig.app.handle(request)
    rig.run()
    return request, answer


def test_each_key_has_its_own_count_of_requests_and_slots_come_back() -> None:
    rig = ServerRig(keys="one,two,reader:read", limits={"inflight_per_key_max": 2})
    rig.ok("PUT", "/v0/topics/t", {}, key="one")
    polls = [poll(rig, "one") for _ in range(2)]
    reply = rig.reply("GET", "/v0/topics/t", key="one")
    assert (reply.status, dict(reply.headers)[b"retry-after"]) == (429, b"1")
    body: Any = rig.ask("PATCH", "/v0/nowhere", key="one").body
    assert body["error"]["detail"] == {"limit": "max_inflight_per_key", "max": 2}
    assert rig.ask("GET", "/v0/topics/t").status == 401
    assert rig.ask("GET", "/v0/topics/t", key="two").status == 200
    assert rig.ask("GET", "/healthz", key="one").status == 200
    polls[0][0].hang_up()
    assert rig.ask("GET", "/v0/topics/t", key="one").status == 200
    rig.advance(5000)
    assert all(settled(answer) is not None for _, answer in polls)
    for _ in range(5):
        assert rig.ask("GET", "/v0/topics/absent", key="one").status == 404
        assert rig.ask("DELETE", "/v0/topics/t", key="reader").status == 403


def test_without_keys_nobody_is_counted() -> None:
    rig = ServerRig(limits={"inflight_per_key_max": 1})
    rig.ok("PUT", "/v0/topics/t", {})
    for _ in range(3):
        poll(rig, "any")
    assert rig.ask("GET", "/v0/topics/t").status == 200


def test_a_handler_that_breaks_gives_its_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ServerRig(keys="one", limits={"inflight_per_key_max": 1})

    def broken(_: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(rig.server.engine, "topic", broken)
    for _ in range(3):
        assert rig.ask("GET", "/v0/topics/t", key="one").status == 500


def test_a_handler_may_say_itself_who_comes_in() -> None:
    rig = ServerRig(keys="one")
    seen: list[int | None] = []

    def handler(request: Request) -> Reply:
        seen.append(request.access.key_id)
        return Reply(200)

    own = Route("GET", "/v0/own/:id", handler, form_token=True, knows_callers=True)
    rig.app._table = RouteTable([own, Route("GET", "/v0/other", handler, Scope.READ, form_token=True)])
    for path in ("/v0/own/x", "/v0/own/x?token=wrong", "/v0/own/x?token=one"):
        assert rig.reply("GET", path).status == 200
    assert seen == [-1, -1, 0]
    assert rig.reply("GET", "/v0/other?token=one").status == 200
    assert rig.reply("GET", "/v0/other?token=wrong").status == 401


def test_a_closing_server_refuses_before_it_looks_at_keys() -> None:
    rig = ServerRig(keys="one")
    rig.server.close()
    answer = rig.send("GET", "/v0/topics")
    assert not isinstance(answer, Pending)
    reply = settled(answer)
    assert reply is not None
    assert (reply.status, dict(reply.headers)[b"retry-after"]) == (503, b"1")


@pytest.mark.parametrize(("path", "unknown"), [("/v0/topics", "/v0/nowhere"), ("/v1/topics", "/v1/nowhere")])
def test_both_apis_check_state_then_key_then_open_requests_then_rights_then_path(path: str, unknown: str) -> None:
    """Each refused request has the faults of the next checks, too."""
    rig = ServerRig(keys="full,reader:read,deleter:delete", limits={"inflight_per_key_max": 1})
    rig.ok("PUT", "/v0/topics/t", {}, key="full")
    assert rig.ask("DELETE", unknown, key="wrong").status == 401
    waiting = poll(rig, "reader")[0]
    assert rig.ask("POST", path, {}, key="reader").status == 429
    waiting.hang_up()
    for key in ("reader", "deleter"):  # neither may create topics; `/v0` has no such method
        assert rig.ask("POST", path, {}, key=key).status == (405 if path.startswith("/v0") else 403)
    assert rig.ask("PUT", path, {}, key="reader").status == 405
    assert rig.ask("DELETE", unknown, key="reader").status == 404
    rig.server.close()
    assert rig.ask("DELETE", unknown, key="wrong").status == 503
