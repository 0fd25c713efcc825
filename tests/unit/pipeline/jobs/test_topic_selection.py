"""Which topics a job reads."""

import re

import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.jobs.topic_selection import selection_key, source_options


def test_plain_names_are_a_list() -> None:
    assert source_options(["orders", " @runs "]) == {"topics": "orders,@runs"}


def test_a_pattern_takes_what_a_shell_would_take_and_names_stay_names() -> None:
    pattern = source_options(["orders", "@runs.*"])["topicPattern"]
    for name in ("orders", "@runs.commands"):
        assert re.fullmatch(pattern, name)
    for name in ("orders2", "@runs", "xv1:runs.a"):
        assert not re.fullmatch(pattern, name)


def test_no_topic_at_all_is_refused_with_what_to_do() -> None:
    with pytest.raises(PipelineError, match="--topics"):
        source_options([" "])


def test_the_same_choice_has_the_same_name() -> None:
    assert selection_key(["a"], None) == selection_key(["a"], None)
    assert selection_key(["a"], None) != selection_key(["a"], "all")


def test_a_pattern_leaves_out_what_the_job_writes_to() -> None:
    pattern = source_options(["loop-*", "other"], ["loop-out", "loop.errors"])["topicPattern"]
    for name in ("loop-in", "loop-out2", "other"):
        assert re.fullmatch(pattern, name)
    assert not re.fullmatch(pattern, "loop-out")


@pytest.mark.parametrize("topics", [["a", "b"], ["a*", "b"]])
def test_a_topic_that_is_named_to_be_read_and_written_is_refused(topics: list[str]) -> None:
    with pytest.raises(PipelineError, match="read and write topic 'b'"):
        source_options(topics, ["b"])
