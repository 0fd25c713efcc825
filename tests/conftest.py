"""Hypothesis profiles: `dev` is the default, `make test` takes `ci`; any other with `--hypothesis-profile`."""

from hypothesis import HealthCheck, settings

_SLOW_IS_FINE = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("dev", max_examples=50, deadline=None, suppress_health_check=_SLOW_IS_FINE)
settings.register_profile("ci", settings.get_profile("dev"), max_examples=500, derandomize=True, database=None)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=20_000)
settings.load_profile("dev")
