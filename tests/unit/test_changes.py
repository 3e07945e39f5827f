"""CHANGELOG.md and its fragments: each has a kind that a release knows, and something to say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "changes"
OTHERS = {"README.md", "template.md.jinja"}
FRAGMENT = re.compile(r"\+[a-z0-9-]+\.(\w+)\.md")
SENTENCES_CHARACTERS_MAX = 600
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def fragments() -> list[Path]:
    return sorted(path for path in FOLDER.iterdir() if path.name not in OTHERS)


def test_each_fragment_has_a_kind_that_a_release_knows() -> None:
    """A fragment with a mistyped kind is a change that no changelog would ever mention."""
    kinds = {kind["directory"] for kind in PROJECT["tool"]["towncrier"]["type"]}
    wrong = [
        path.name
        for path in fragments()
        if not (name := FRAGMENT.fullmatch(path.name)) or name[1] not in kinds
    ]
    assert not wrong, f"changes/+SLUG.KIND.md, where KIND is one of {sorted(kinds)}: {wrong}"


def test_each_fragment_says_something_short() -> None:
    """A fragment is one or two sentences for users, without a bullet or a heading of its own."""
    for path in fragments():
        text = path.read_text("utf-8").strip()
        assert text, path.name
        assert not text.startswith(("*", "-", "#")), path.name
        assert len(text) <= SENTENCES_CHARACTERS_MAX, path.name


def test_the_changelog_has_the_version_of_the_package() -> None:
    """A release that is cut has its section; until then it stands under Unreleased."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    version = re.escape(PROJECT["project"]["version"])
    assert re.search(rf"^## ({version}, \d{{4}}-\d\d-\d\d|Unreleased)$", text, re.MULTILINE)
