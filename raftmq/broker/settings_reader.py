"""From parsed TOML to checked values, going on after each problem so that all are told at once.

Owns the shape of a settings file: sections, voters by id, a list of listeners. What a key takes,
`node_keys` says; whether values go together, `settings_checks`. Reads no file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from raftmq.broker.node_keys import (
    ADVERTISED,
    BIND,
    LISTENER_NAME,
    NODE_ID,
    NODE_KEYS,
    REPLACE,
    VOTER,
    Kind,
    NodeKey,
    closest,
    convert,
    known_below,
)
from raftmq.metadata.raft.settings import brief

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.model import Address


OPTIONAL = ("groups", "limits")  # sections in which every key has a default


class Origin(NamedTuple):
    """Where a value comes from that is not the file's, and the text that was given there."""

    source: str
    text: str


class FoundListener(NamedTuple):
    """`where` is its name in messages; None stands for what is wrong or missing."""

    where: str
    name: str | None
    bind: Address | None
    advertised: Address | None


class SettingsReader:
    """Attributes:
    problems: one line for each, with its key.
    """

    def __init__(self, values: Mapping[str, Any], origins: Mapping[str, Origin]) -> None:
        self._values, self._origins = values, origins
        self.problems: list[str] = []
        self._meant: set[str] = set()  # keys that are there, misspelt: not missing as well
        self._check_sections()

    def node(self, key: NodeKey) -> Any:  # noqa: ANN401  # as the key is
        """The value of one of [node]'s keys; None if there is none, or it is wrong."""
        return self._read(key, self._section("node"))

    def check_names(self) -> None:
        """Of the sections that are tables of keys; before the keys are read."""
        for section in ("node", *OPTIONAL):
            self._check_names(f"{section}.", self._section(section), known_below(section))

    def optional(self, key: NodeKey) -> int:
        """The value of a key of a section that may be missing; its default where it is left out, or
        wrong.
        """
        value: int | None = self._read(key, self._section(key.name.partition(".")[0]))
        return int(key.default) if value is None else value

    def replace(self) -> bool:
        """Whether this node takes the seat of a disk that is lost."""
        return bool(self._read(REPLACE, self._section("quorum")))

    def voters(self) -> dict[int, Address | None]:
        """None stands for an address that is wrong."""
        quorum = self._section("quorum")
        self._check_names("quorum.", quorum, known_below("quorum"))
        table = quorum.get("voters")
        if not isinstance(table, dict) or not table:
            if "quorum" in self._values and "quorum.voters" not in self._meant:
                self.problems.append(
                    '[quorum.voters]: no voters, expected a line like 1 = "host:port" for each'
                )
            return {}
        found = {}
        for text in table:
            name = f"quorum.voters.{text}"
            if is_id(text):
                found[int(text)] = self._read(VOTER, table, name)
            else:
                self.problems.append(f"{name}: {text!r} is no node id, expected {NODE_ID.allowed}")
        return found

    def listeners(self) -> list[FoundListener]:
        tables = self._values.get("listeners")
        if tables is None and "listeners" in self._meant:
            return []
        if not isinstance(tables, list) or not tables:
            is_there = tables is not None and tables != []
            what = (
                "expected [[listeners]], once for each" if is_there else "this section is missing"
            )
            self.problems.append(f"[[listeners]]: {what}")
            return []
        return [self._listener(at, table) for at, table in enumerate(tables)]

    # One piece

    def _listener(self, at: int, table: object) -> FoundListener:
        if not isinstance(table, dict):
            self.problems.append(f"listeners[{at}] = {brief(table)}: expected [[listeners]]")
            return FoundListener(f"listeners[{at}]", None, None, None)
        given = table.get("name")
        where = f"listeners.{given}" if isinstance(given, str) and given else f"listeners[{at}]"
        self._check_names(f"{where}.", table, known_below("listeners.<name>"))
        name, bind, advertised = (
            self._read(key, table, f"{where}.{key.last_name}")
            for key in (LISTENER_NAME, BIND, ADVERTISED)
        )
        is_said = "advertised" in table
        return FoundListener(where, name, bind, advertised if is_said else bind)

    def _read(self, key: NodeKey, table: Mapping[str, Any], name: str = "") -> Any:  # noqa: ANN401  # as the key is
        name = name or key.name
        last_name = name.rpartition(".")[2]
        if last_name not in table:
            if not key.default and name not in self._meant and self._is_section_there(name):
                self.problems.append(f"{name}: missing, expected {key.allowed}")
            return None
        value, origin = table[last_name], self._origins.get(name)
        if origin and key.kind not in (Kind.NUMBER, Kind.SWITCH):
            value = value if isinstance(value, str) else origin.text  # node.rack=3 is a text
        try:
            return convert(key, value)
        except ValueError as error:
            source = f" from {origin.source}" if origin else ""
            self.problems.append(f"{name} = {brief(value)}{source}: {error}")
            return None

    # Sections and names

    def _check_sections(self) -> None:
        known = known_below("")
        for name, value in self._values.items():
            if name not in known:
                self._unknown_section(name, value, known)
        for name in ("node", "quorum", *OPTIONAL):
            value = self._values.get(name, {})
            if not isinstance(value, dict):
                self.problems.append(f"{name} = {brief(value)}: expected a section [{name}]")
            elif name not in OPTIONAL and name not in self._values and name not in self._meant:
                self.problems.append(f"[{name}]: this section is missing")

    def _unknown_section(self, name: str, value: object, known: list[str]) -> None:
        if isinstance(value, (dict, list)):
            meant = closest(name, known)
            self._meant.add(meant)
            hint = f", did you mean [{meant}]?" if meant else ", known are " + ", ".join(known)
            self.problems.append(f"[{name}]: unknown section{hint}")
            return
        homes = [key.name for key in NODE_KEYS if key.last_name == name]
        hint = f", did you mean {homes[0]}, in its section?" if homes else ""
        self._meant.update(homes)
        self.problems.append(f"{name}: unknown, and in no section{hint}")

    def _section(self, name: str) -> Mapping[str, Any]:
        found = self._values.get(name)
        return found if isinstance(found, dict) else {}

    def _is_section_there(self, name: str) -> bool:
        """Else that has been said, and is enough."""
        section = name.partition(".")[0]
        return section != "node" or isinstance(self._values.get(section), dict)

    def _check_names(self, where: str, table: Mapping[str, Any], known: list[str]) -> None:
        for name in table:
            if name not in known:
                meant = closest(name, known)
                hint = f", did you mean {where}{meant}?" if meant else ""
                self._meant.add(f"{where}{meant}")
                self.problems.append(f"{where}{name}: unknown{hint}")


def is_id(text: str) -> bool:
    """Whether a key of [quorum.voters] is a node id, written as everybody writes it."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(NODE_ID.maximum))
    return is_number and str(int(text)) == text and int(text) <= NODE_ID.maximum
