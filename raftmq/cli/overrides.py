"""`-o key=value`: settings of the command line in place of the file's.

Owns the way from a dotted key into parsed TOML. What a key means, and whether there is one, is for
`parse_settings` to say.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

from raftmq.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Iterable


def override(values: dict[str, Any], overrides: Iterable[str]) -> None:
    """Put each `key=value` in its place in `values`, the last one of a key for good.

    A value is TOML, or else a text. In a list of tables a table goes by its name, and one of a
    new name is added.

    Raises:
        InvalidConfig: no `key=value`, or a place that is no table; names all of them.
    """
    problems = []
    for text in overrides:
        key, is_given, value = text.partition("=")
        *way, name = key.strip().split(".")
        table = _table_at(values, way)
        if not is_given or not name or "" in way:
            problems.append(f"-o {text}: expected key=value, like node.id=2")
        elif table is None:
            problems.append(f"-o {text}: {'.'.join(way)} is no section")
        else:
            table[name] = _value_of(value.strip())
    if problems:
        raise InvalidConfig(problems)


def _table_at(values: dict[str, Any], way: list[str]) -> dict[str, Any] | None:
    """Made where it is missing; None if there is something else."""
    found: Any = values
    for name in way:
        if isinstance(found, dict):
            found = found.setdefault(name, {})
        elif isinstance(found, list):
            found = _named(found, name)
        else:
            return None
    return found if isinstance(found, dict) else None


def _named(tables: list[Any], name: str) -> dict[str, Any]:
    for table in tables:
        if isinstance(table, dict) and table.get("name") == name:
            return table
    tables.append({"name": name})
    added: dict[str, Any] = tables[-1]
    return added


def _value_of(text: str) -> object:
    try:
        values = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text  # an address, a path: no quotes to fight with the shell's
    return values["value"] if len(values) == 1 else text
