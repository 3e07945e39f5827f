"""docs/REQUIREMENTS.md is what the docstrings of tests cite, and leaves nothing out."""

from __future__ import annotations

import pytest

from tests import requirements

pytestmark = pytest.mark.gate


def test_every_id_that_a_test_cites_is_known() -> None:
    """A mistyped id would be the requirement of nobody."""
    unknown = {
        name: found
        for name, found in requirements.cited().items()
        if name not in requirements.KNOWN
    }
    assert not unknown, f"not in tests/requirements.py: {unknown}"


def test_what_nothing_shows_is_named_as_missing() -> None:
    """A requirement without a test counts as not built, and is listed so."""
    silent = [
        name
        for name, each in requirements.KNOWN.items()
        if name not in requirements.cited() and not each.missing
    ]
    assert not silent, f"no test cites them, and tests/requirements.py misses nothing: {silent}"


def test_the_page_is_what_is_cited() -> None:
    """A test was renamed, or cites another id: the page is written anew."""
    written = requirements.PAGE.read_text("utf-8")
    assert written == requirements.page(), "python -m tests.requirements"
