"""Every job can be found, and each of its options is a flag with a help text."""

import pytest

from driftq.pipeline.errors import PipelineError
from driftq.pipeline.runs.job import PLACES, find_job
from driftq.pipeline.runs.job_options import HelpAskedError, flags_of, parse_flags


@pytest.mark.parametrize("name", PLACES)
def test_a_job_is_found_and_its_help_tells_of_every_option(name: str) -> None:
    job = find_job(name)
    assert job.name == name
    with pytest.raises(HelpAskedError) as asked:
        parse_flags(job.options, ["--help"], name=name, about=job.help)
    for flag in flags_of(job.options):
        assert flag.name in str(asked.value)
        assert flag.help, f"{name} {flag.name} has no help"


@pytest.mark.parametrize("name", PLACES)
def test_the_least_that_a_job_needs_is_enough(name: str) -> None:
    options = find_job(name).options
    needed = [part for flag in flags_of(options) if flag.required for part in (flag.name, "1")]
    made = parse_flags(options, needed, name=name, about="")
    assert isinstance(made, options)


def test_an_unknown_job_is_refused_with_those_there_are() -> None:
    with pytest.raises(PipelineError, match="archive"):
        find_job("nothing")
