"""Options of jobs, from flags and from keywords."""

from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

from driftq.pipeline.runs.job_options import HelpAskedError, WrongFlagError, flags_of, make_options, parse_flags


class Sample(Struct, frozen=True, kw_only=True):
    """Options of a job that does nothing."""

    topics: Annotated[list[str], Meta(description="Topics to read.")]
    max_records: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Records per batch, 100% at most.")] = (
        None
    )
    rate: float = 1.5
    once: bool = False
    mode: Literal["fast", "safe"] = "safe"


def parse(*arguments: str) -> Sample:
    return parse_flags(Sample, arguments, name="sample", about="Does nothing.")


def test_flags_become_typed_options() -> None:
    made = parse("--topics", "a,b", "--topics", "c", "--max-records", "7", "--once", "--mode", "fast", "--rate", "2")
    assert made == Sample(topics=["a", "b", "c"], max_records=7, rate=2.0, once=True, mode="fast")


def test_what_is_not_given_has_its_default() -> None:
    assert parse("--topics", "a") == Sample(topics=["a"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--topics"),
        (["--topics", "a", "--max-records", "many"], "--max-records"),
        (["--topics", "a", "--max-records", "0"], "--max-records"),
        (["--topics", "a", "--mode", "wild"], "--mode"),
        (["--topics", "a", "--nonsense"], "--nonsense"),
        (["--topics", "a", "--max", "3"], "--max"),
    ],
)
def test_a_wrong_flag_is_named_in_one_line(arguments: list[str], told: str) -> None:
    with pytest.raises(WrongFlagError) as caught:
        parse(*arguments)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_help_has_every_flag_and_what_it_means() -> None:
    with pytest.raises(HelpAskedError) as asked:
        parse("--help")
    text = str(asked.value)
    assert all(flag.name in text for flag in flags_of(Sample))
    assert "Topics to read." in text
    assert "100% at most" in text


def test_keywords_are_checked_like_flags() -> None:
    assert make_options(Sample, {"topics": ["a"], "max_records": 3}) == Sample(topics=["a"], max_records=3)
    with pytest.raises(WrongFlagError, match="--max-records"):
        make_options(Sample, {"topics": ["a"], "max_records": -1})
