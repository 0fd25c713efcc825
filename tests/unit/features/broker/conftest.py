"""The broker that most tests of groups begin with; some make another under the same name."""

import pytest

from tests.unit.features.broker.rig import BrokerRig


@pytest.fixture
def rig() -> BrokerRig:
    """Three messages in one partition."""
    rig = BrokerRig()
    rig.create()
    rig.produce(*"abc")
    return rig
