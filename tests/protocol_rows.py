"""The rows of docs/PROTOCOL.md under "Requests": number, name and fields, from the classes.

`python -m tests.protocol_rows` writes them. What a field means is written by hand, in the last
column, and stays; the row of a new class is put below the rows of its module.
`tests/unit/wire/test_messages.py` compares the page with the classes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

from raftmq.wire.bodies import ID_BYTES, NAME_CHARS_MAX, Request
from raftmq.wire.envelopes import NIL, RequestHeader, ResponseHeader
from tests.unit.wire.random_bodies import all_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PAGE = Path(__file__).parents[1] / "docs/PROTOCOL.md"
BEGIN, END = "\n## Requests\n", "\n## "
_ROW = re.compile(r"^\| (?:\d+ )?`(\w+)` \|.*\|(.*)\|$")
_NUMBERS = {
    (0, (1 << 15) - 1): "u15",
    (0, (1 << 31) - 1): "u31",
    (0, (1 << 63) - 1): "u63",
    (-1, (1 << 31) - 1): "u31 or -1",
    (-1, (1 << 63) - 1): "u63 or -1",
    (-(1 << 15), (1 << 15) - 1): "i16",
    (1 - (1 << 63), (1 << 63) - 1): "i63",
}


def rows(page: str, more: Iterable[type[Any]] = ()) -> str:
    """The page with the rows as the classes are, and `more` of them."""
    before, begin, rest = page.partition(BEGIN)
    section, end, after = rest.partition(END)
    kinds = {kind.__name__: kind for kind in (RequestHeader, ResponseHeader, *all_parts(), *more)}
    lines: list[str] = []
    written = set()
    for line in section.split("\n"):
        found = _ROW.match(line)
        if found is None:
            lines.append(line)
        elif found[1] in kinds:  # else a class that is gone
            lines.append(_row(kinds[found[1]], found[2]))
            written.add(found[1])
    for name, kind in kinds.items():
        if name not in written:
            lines.insert(_place(kind, kinds, lines), _row(kind, "  "))
    return before + begin + "\n".join(lines) + end + after


def _place(kind: type[Any], kinds: dict[str, type[Any]], lines: list[str]) -> int:
    """Below the last row of its module, in whose table the family stands."""
    modules = [kinds[found[1]].__module__ if (found := _ROW.match(line)) else "" for line in lines]
    assert kind.__module__ in modules, f"{kind.__module__} has no table yet: write its first row"
    return len(modules) - modules[::-1].index(kind.__module__)


def _row(kind: type[Any], meaning: str) -> str:
    number = f"{kind.api_key} " if issubclass(kind, Request) else ""
    return f"| {number}`{kind.__name__}` | {', '.join(_fields(kind))} |{meaning}|"


def _fields(kind: type[Any]) -> Iterator[str]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType), "no message"
    for field, wire in zip(info.fields, msgspec.structs.fields(kind), strict=True):
        default = wire.default if wire.default_factory is msgspec.NODEFAULT else ()
        told = "" if field.required else f" = {_value(default)}"
        yield f"`{field.encode_name}` {_type(field.type)}{told}"


def _value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int():
            return f"{value:,}"
        case float():
            return f"{value:g}"
        case None:
            return "nil"
        case str():
            return value or "empty"
    return "nil" if value is NIL else "empty"


def _type(info: inspect.Type) -> str:
    match info:
        case inspect.IntType(ge=least, le=most):
            return _NUMBERS.get((least, most)) or f"{_number(least)} to {_number(most)}"
        case inspect.FloatType(ge=least, le=most):
            return f"float from {least:g} to {most:g}".replace("e+0", "e")
        case inspect.StrType(min_length=least, max_length=most):
            kind = "name" if most == NAME_CHARS_MAX else f"str of {most:,}"
            return f"{kind} of {least} or more" if least else kind
        case inspect.BytesType(min_length=least, max_length=most):
            return "id" if least == most == ID_BYTES else f"bin of {most:,}"
        case inspect.StructType(cls=kind):
            return kind.__name__
        case inspect.UnionType(types=types):
            return " or ".join(map(_type, types))
        case inspect.VarTupleType() | inspect.DictType():
            return _collection(info)
    return {inspect.BoolType: "bool", inspect.RawType: "any", inspect.NoneType: "nil"}[type(info)]


def _collection(info: inspect.VarTupleType | inspect.DictType) -> str:
    if isinstance(info, inspect.DictType):
        return f"map of {info.max_length:,}, {_type(info.key_type)}: {_type(info.value_type)}"
    item = _type(info.item_type)
    least = f"{info.min_length:,} to " if info.min_length else ""
    return f"{least}{info.max_length:,} x {f'({item})' if ' x ' in item else item}"


def _number(number: int | None) -> str:
    assert number is not None, "test_messages.py demands limits"
    power = (number + 1).bit_length() - 1
    return f"2^{power}-1" if power > 16 and number + 1 == 1 << power else f"{number:,}"


if __name__ == "__main__":
    PAGE.write_text(rows(PAGE.read_text("utf-8")), "utf-8")
