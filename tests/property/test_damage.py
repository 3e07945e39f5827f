"""Damage to any file of a data directory: never a wrong byte, never an unhandled exception."""

from __future__ import annotations

import pytest

from tests.property import damage


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_damage(first: int) -> None:
    """Forty seeds; a failure names its seed for `python -m tests.property.damage --seed`."""
    for seed in range(first, first + 40):
        try:
            damage.run(seed)
        except Exception as error:
            pytest.fail(f"{error!r}\nreplay: python -m tests.property.damage --seed {seed}")
