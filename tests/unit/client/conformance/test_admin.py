"""Model brokers answer as whole brokers do: topics, settings, old records, leaders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.client.conformance.admin_scenarios import ADMIN_SCENARIOS
from tests.unit.client.conformance.implementations import bureau, whole

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.client.conformance.harness import Scenario
    from tests.unit.client.conformance.implementations import Opener


@pytest.mark.parametrize("scenario", ADMIN_SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("opened", [bureau, whole], ids=lambda opened: opened.__name__)
async def test_scenario(opened: Opener, scenario: Scenario, autojump_clock: MockClock) -> None:
    async with opened() as here:
        await scenario(here)
