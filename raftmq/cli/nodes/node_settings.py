"""The settings of a node out of their three layers, and its failures as lines of the command line.

Owns the order of the layers: the file, above it the environment, above both `-o`. All problems of
all layers are reported together.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from raftmq.broker.settings import SettingOrigin, parse_settings, read_settings
from raftmq.cli.nodes.overrides import override, override_by_variables
from raftmq.cli.nodes.startup_hints import told
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from raftmq.broker.settings import BrokerSettings


def settings_of(config: Path, overrides: Sequence[str]) -> tuple[BrokerSettings, dict[str, str]]:
    """Merge the file, above it the environment, above both the command line; and where the value
    of each key comes from that has no default. Raises InvalidConfig with all problems."""
    values, problems, origins = read_settings(config), list[str](), dict[str, SettingOrigin]()
    with _gathered(problems):
        override_by_variables(values, os.environ, origins)
    with _gathered(problems):
        override(values, overrides, origins)
    with _gathered(problems):
        settings = parse_settings(values, origins)
    if problems:
        raise InvalidConfig(problems)
    return settings, {key: _source(key, origins) for key in _keys(values)}


def _keys(values: Mapping[str, Any], section: str = "") -> Iterator[str]:
    """The dotted names of all values; a listener goes by its name."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{section}{name}.")
        elif isinstance(value, list):
            for table in value:
                yield from _keys(table, f"{section}{name}.{table['name']}.")
        else:
            yield section + name


def _source(key: str, origins: Mapping[str, SettingOrigin]) -> str:
    """`-o`, a variable, or the file; `-o` may have given the whole section, too."""
    while key and key not in origins:
        key = key.rpartition(".")[0]
    return origins[key].source if key else "the file"


@contextmanager
def _gathered(problems: list[str]) -> Iterator[None]:
    """Collect the problems of all layers before any of them is reported."""
    try:
        yield
    except InvalidConfig as error:
        problems += error.problems


def failure(errors: Sequence[BaseException], settings: BrokerSettings | None) -> CommandError:
    """One line for each problem with the settings; all other errors share one line."""
    problems = [
        problem
        for error in errors
        for problem in (error.problems if isinstance(error, InvalidConfig) else [])
    ]
    # `dict.fromkeys`: the same wrong value may be reported by several layers.
    if problems and all(isinstance(error, InvalidConfig) for error in errors):
        lines = (" ".join(problem.split()) for problem in problems)
        return CommandError("\n".join(dict.fromkeys(lines)), ExitCode.USAGE)
    said = dict.fromkeys(told(error, settings) for error in errors)
    return CommandError("; ".join(said), ExitCode.FAILED)
