"""Pyright, which editors run, accepts and refuses the same lines as mypy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.client.typing import test_consumer_types, test_producer_types
from tests.unit.client.typing.checker import check, pyright_complaints

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("basedpyright")  # pyright, as a package that needs no network

PROGRAMS = {
    f"{module.__name__.rpartition('.')[2]}_{name}": program
    for module in (test_consumer_types, test_producer_types)
    for name, program in vars(module).items()
    if name.isupper() and isinstance(program, str)
}


def test_the_same_lines(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Right programs pass strictly; each wrong line is refused by the standard settings."""
    assert len(PROGRAMS) >= 8, "the programs are not found"
    found = pyright_complaints(PROGRAMS, tmp_path)
    for name, program in PROGRAMS.items():
        with subtests.test(name):
            check(program, found.get(name, {}))
