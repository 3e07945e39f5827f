"""Settings above the file's: variables like RAFTMQ_NODE__ID, and above them `-o key=value`.

Owns the way from a dotted key or a variable's name into parsed TOML, and records where each value
came from, for error messages. Which values a key accepts is for `parse_settings` to say.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

from raftmq.broker.node_config_keys import closest_key, find_key
from raftmq.broker.settings import SettingOrigin
from raftmq.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PREFIX, SEPARATOR = "RAFTMQ_", "__"
LISTENERS = "listeners"


def override(
    values: dict[str, Any],
    overrides: Iterable[str],
    origins: dict[str, SettingOrigin] | None = None,
) -> None:
    """Put each `key=value` in its place in `values`; the last one of a key wins.

    A value is TOML, or else text. In a list of tables a table goes by its name, and one of a new
    name is added. `origins` receives where these values come from, by key.

    Raises:
        InvalidConfig: no `key=value`, or a place that is no table; names all of them.
    """
    problems, origins = [], {} if origins is None else origins
    for text in overrides:
        key, is_given, value = text.partition("=")
        *way, name = key.strip().split(".")
        if not is_given or not name or "" in way:
            problems.append(f"-o {text}: expected key=value, like node.id=2")
        elif (table := _table_at(values, way)) is None:
            problems.append(f"-o {text}: {'.'.join(way)} is no section")
        else:
            table[name] = _value_of(value.strip())
            key = ".".join([*way, name])
            # A table that replaces what variables had set in it.
            for below in [one for one in origins if one.startswith(f"{key}.")]:
                del origins[below]
            origins[key] = SettingOrigin("-o", value.strip())
    if problems:
        raise InvalidConfig(problems)


def override_by_variables(
    values: dict[str, Any],
    environment: Mapping[str, str],
    origins: dict[str, SettingOrigin] | None = None,
) -> None:
    """The same for `RAFTMQ_SECTION__KEY`: RAFTMQ_NODE__ID=2 is `-o node.id=2`.

    Variables without the two underscores belong to other programs: RAFTMQ_BOOTSTRAP is the
    client's.

    Raises:
        InvalidConfig: a variable that means no key; names all of them.
    """
    problems, origins = [], {} if origins is None else origins
    # Sorted: the problems, and listeners that are added, come in the same order on every machine.
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX) or SEPARATOR not in variable.removeprefix(PREFIX):
            continue
        key = variable.removeprefix(PREFIX).lower().replace(SEPARATOR, ".")
        *way, name = key.split(".")
        # A variable with our prefix that means no key is a typing error: refused, not ignored.
        if find_key(key) is None:
            problems.append(f"{variable}: {_unknown(key)}")
        elif (table := _table_at(values, way)) is None:
            problems.append(f"{variable}={text}: {'.'.join(way)} is no section in the file")
        else:
            table[name] = _value_of(text.strip())
            origins[key] = SettingOrigin(variable, text.strip())
    if problems:
        raise InvalidConfig(problems)


def variable_of(key: str) -> str:
    """The variable that sets this key: `node.id` is RAFTMQ_NODE__ID."""
    return PREFIX + key.upper().replace(".", SEPARATOR)


def _unknown(key: str) -> str:
    meant = closest_key(key)
    return f"means no setting, did you mean {variable_of(meant)}?" if meant else "means no setting"


def _table_at(values: dict[str, Any], way: list[str]) -> dict[str, Any] | None:
    """The table at this path, made where it is missing; None if something else is there."""
    found: Any = values
    for name in way:
        if isinstance(found, dict):
            # `[[listeners]]` is the one list of tables; all other sections are plain tables.
            is_list = found is values and name == LISTENERS
            found = found.setdefault(name, [] if is_list else {})
        # In a list of tables (listeners) a name in the key selects the table.
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
    # A text with newlines could define further keys: then it is no single value, but text.
    return values["value"] if len(values) == 1 else text
