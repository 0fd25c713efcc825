"""Hypothesis profiles: `dev` is the default, `make test` takes `ci`; any other with `--hypothesis-profile`."""

import gc

import pytest
from hypothesis import HealthCheck, settings

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("ci", settings.get_profile("dev"), max_examples=100, derandomize=True, database=None)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=20_000)
settings.load_profile("dev")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Modules and collected tests stay until the end: no collection of garbage needs to look at them again."""
    gc.collect()
    gc.freeze()
