"""Figures in the documents name the commit that was measured, which can be checked out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Seven digits or more; with decimal digits alone only behind the word, as 1048576 is a number.
CITED = re.compile(
    r"(?:commits? `?|\()([0-9a-f]{7,40})\b|\b((?=\d*[a-f])(?=[a-f]*\d)[0-9a-f]{7,40})\b"
)
SHALLOW = (
    "this checkout has no whole history (git fetch --unshallow): cited commits are not checked"
)


def _git(*arguments: str) -> str:
    command = ("git", "-C", str(ROOT), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _cited() -> dict[str, str]:
    """By commit: a page that cites it."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return {
        found[1] or found[2]: page.relative_to(ROOT).as_posix()
        for page in pages
        for found in CITED.finditer(page.read_text("utf-8"))
        if not (found[1] or "").isdecimal() or found[0].startswith("commit")
    }


def test_every_cited_commit_is_in_the_history() -> None:
    """A page names a commit by its hash, and nobody can look at it."""
    if _git("rev-parse", "--is-shallow-repository") != "false":
        pytest.skip(SHALLOW)
    cited = _cited()
    assert len(cited) > 3, "no page cites a commit any more, or they are not found"
    history = _git("rev-list", "HEAD").split()
    unknown = [
        f"{page}: {commit}"
        for commit, page in cited.items()
        if not any(each.startswith(commit) for each in history)
    ]
    assert not unknown, f"commits that the history does not have: {unknown}"
