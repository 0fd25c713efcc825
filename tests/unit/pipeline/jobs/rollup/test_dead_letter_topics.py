"""Dead letters are read along with what they come from."""

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from driftq.client import Client, NotFoundError
from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.rollup.dead_letter_topics import with_letters
from driftq.pipeline.jobs.start_seqs import chosen_now

TOPICS = {"plain": None, "jobs": "jobs.dead", "@runs": None}


class Server:
    """Topics, and where their dead letters go."""

    def topic(self, name: str) -> Any:
        def info(*, touch: bool) -> Any:
            assert not touch
            if name not in TOPICS:
                raise NotFoundError(404, "topic_not_found", "there is none")
            return SimpleNamespace(config=SimpleNamespace(dead_letter=TOPICS[name]))

        return SimpleNamespace(info=info)

    def topics(self) -> list[Any]:
        return [SimpleNamespace(topic=name) for name in [*TOPICS, "jobs.dead", "@dlq.runs"]]


SERVER = cast("Client", Server())


def read(*topics: str) -> list[str]:
    return chosen_now(SERVER, with_letters(SERVER, topics))


def test_topics_without_dead_letters_are_named_as_they_are() -> None:
    assert with_letters(SERVER, ["plain"]) == {"topics": "plain"}
    assert read("p*", " @dlq.r* ") == ["plain", "@dlq.runs"]


def test_dead_letters_of_queues_and_of_the_broker_are_read_along() -> None:
    assert read("jobs") == ["jobs", "jobs.dead"]
    assert read("@runs", "plain") == ["plain", "@runs", "@dlq.runs"]
    assert read("@r*") == ["@runs", "@dlq.runs"]
    assert read("jobs", "p*") == ["plain", "jobs", "jobs.dead"], "a pattern beside it changes nothing"
    assert re.fullmatch(with_letters(SERVER, ["@runs"])["topicPattern"], "@dlq.runs")


def test_a_topic_that_is_named_must_be_there() -> None:
    with pytest.raises(PipelineError, match="no topic 'absent'"):
        with_letters(SERVER, ["plain", "absent"])
    with pytest.raises(PipelineError, match="no topic 'absent'"):
        with_letters(SERVER, ["p*", "absent"])
