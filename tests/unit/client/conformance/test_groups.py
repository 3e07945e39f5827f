"""Model coordinators answer as whole brokers do: offsets, groups, members."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.client.conformance.group_scenarios import MEMBER_SCENARIOS, OFFSET_SCENARIOS
from tests.unit.client.conformance.implementations import coordinating, registry, whole

if TYPE_CHECKING:
    from trio.testing import MockClock

    from tests.unit.client.conformance.harness import Scenario
    from tests.unit.client.conformance.implementations import Opener


@pytest.mark.parametrize("scenario", OFFSET_SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("opened", [registry, whole], ids=lambda opened: opened.__name__)
async def test_offsets(opened: Opener, scenario: Scenario, autojump_clock: MockClock) -> None:
    async with opened() as here:
        await scenario(here)


@pytest.mark.parametrize("scenario", MEMBER_SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("opened", [coordinating, whole], ids=lambda opened: opened.__name__)
async def test_members(opened: Opener, scenario: Scenario, autojump_clock: MockClock) -> None:
    async with opened() as here:
        await scenario(here)
