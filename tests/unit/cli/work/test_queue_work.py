"""What a command that `driftq queue work` runs gets in its environment."""

from driftq.cli.work.queue_work import command_environment
from driftq.client import Job


def test_a_command_gets_no_api_key() -> None:
    inherited = {"PATH": "/bin", "DRIFTQ_API_KEY": "secret", "DRIFTQ_API_KEYS": "secret", "DRIFTQ_URL": "http://h"}
    given = command_environment(inherited, "q", _job("tag"))
    assert given.keys() & inherited.keys() == {"PATH", "DRIFTQ_URL"}
    assert not [value for value in given.values() if "secret" in value]
    assert (given["DRIFTQ_JOB_TOPIC"], given["DRIFTQ_JOB_SEQ"], given["DRIFTQ_JOB_TAG"]) == ("q", "7", "tag")


def test_any_tag_can_be_a_variable() -> None:
    given = command_environment({}, "q", _job("a\0b"))
    assert given["DRIFTQ_JOB_TAG"] == "a\ufffdb"
    assert not [value for value in given.values() if "\0" in value]


def _job(tag: str) -> Job:
    return Job(seq=7, ts=1, data={}, tag=tag, meta={"note": "a\0b"}, deliveries=1, deadline=2, lease_id="l")
