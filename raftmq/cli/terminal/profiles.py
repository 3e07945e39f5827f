"""Profiles: named clusters in a TOML file, chosen by `--profile NAME` or RAFTMQ_PROFILE.

Owns the file's place, its keys and the messages about it. It is read only when a profile is asked
for.
"""

from __future__ import annotations

import os
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import rich_click as click

from raftmq.cli.terminal.exits import CommandError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "RAFTMQ_PROFILE"


class Profile(NamedTuple):
    """One cluster, and how to reach it. None: not set."""

    bootstrap: str | None = None
    client_id: str | None = None


def profiles_file() -> Path:
    """Where the desktop's standard (XDG) has configuration."""
    root = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(root) / "raftmq" / "profiles.toml"


def chosen_profile() -> Profile:
    """The profile of the running command; an empty one if none was named.

    Raises:
        CommandError: there is none of this name, or the file cannot be used.
    """
    context = click.get_current_context(silent=True)
    name = None if context is None else context.find_root().params.get("profile")
    if name is None:
        return Profile()
    profiles, problems = read_profiles()
    # What is wrong with others does not concern this command.
    if name in problems:
        raise CommandError("\n".join(problems[name]), ExitCode.USAGE)
    if name in profiles:
        return profiles[name]
    known = f"there are {', '.join(sorted(profiles))}" if profiles else "it has no profiles"
    close = get_close_matches(name, profiles, n=1)
    meant = f", did you mean {close[0]!r}?" if close else ":"
    raise CommandError(f"no profile {name!r} in {profiles_file()}{meant} {known}", ExitCode.USAGE)


def read_profiles() -> tuple[dict[str, Profile], dict[str, list[str]]]:
    """The profiles that can be used, and the problems of all others, by name; none if there is no
    file.

    Raises:
        CommandError: the file cannot be read, or is no TOML.
    """
    path = profiles_file()
    try:
        found = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}, {}
    except (OSError, ValueError) as error:  # not to be read, no UTF-8, no TOML
        raise CommandError(f"{path}: {error}", ExitCode.USAGE) from error
    problems = {name: [f"{path}: {one}" for one in _problems(name, found[name])] for name in found}
    profiles = {
        name: Profile(table.get("bootstrap"), table.get("client_id"))
        for name, table in found.items()
        if not problems[name]
    }
    return profiles, {name: told for name, told in problems.items() if told}


def _problems(name: str, table: Any) -> Iterator[str]:  # noqa: ANN401  # TOML's
    if not isinstance(table, dict):
        form = f'{name} = {{ bootstrap = "host:9292" }}'
        yield f"{name} = ...: expected a table, like {form}"
        return
    for key, value in table.items():
        if key not in Profile._fields:
            close = get_close_matches(key, Profile._fields, n=1)
            hint = f"did you mean {close[0]!r}?" if close else "there are bootstrap, client_id"
            yield f"{name}.{key}: unknown key, {hint}"
        elif not isinstance(value, str) or not value:
            yield f'{name}.{key} = {value!r}: expected a text, like "host1:9292"'
