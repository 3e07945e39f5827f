"""Fixtures for nodes that run."""

from __future__ import annotations

import pytest


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of this test alone."""
    name: str = request.node.name
    return name.removeprefix("test_").partition("[")[0]
