"""Random messages of any class, made from nothing but its fields and their limits.

Numbers and lengths at their limits come often. Lists stay short unless their limit is asked for.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

from raftmq.wire.bodies import Body, BodyT
from raftmq.wire.messages import REQUESTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

REQUEST_CLASSES = tuple(REQUESTS.values())
REPLY_CLASSES = tuple(dict.fromkeys(cls.reply for cls in REQUEST_CLASSES))
ITEMS_MAX = 3
CHARACTERS = "abc-._ 09é€\U0001f600\x00"


@cache  # msgspec evaluates the annotations of a class each time that it is asked
def field_types(kind: type[msgspec.Struct]) -> dict[str, inspect.Type]:
    """What each field of `kind` may hold, in the order of the wire."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return {field.name: field.type for field in info.fields}


def parts_of(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """`kind` and every class of which a message of it consists."""
    yield kind
    for field_type in field_types(kind).values():
        for inner in inner_types(field_type):
            if isinstance(inner, inspect.StructType):
                yield from parts_of(inner.cls)


def inner_types(info: inspect.Type) -> Iterator[inspect.Type]:
    """`info` and the types within it, down to those of other classes."""
    yield info
    if isinstance(info, inspect.UnionType):
        for option in info.types:
            yield from inner_types(option)
    elif isinstance(info, inspect.VarTupleType):
        yield from inner_types(info.item_type)
    elif isinstance(info, inspect.DictType):
        yield from inner_types(info.key_type)
        yield from inner_types(info.value_type)


def all_parts() -> list[type[msgspec.Struct]]:
    """Every class that is on the wire within a body."""
    kinds = (*REQUEST_CLASSES, *REPLY_CLASSES)
    return list(dict.fromkeys(part for kind in kinds for part in parts_of(kind)))


def random_body(kind: type[BodyT], random: Random) -> BodyT:
    assert issubclass(kind, Body)
    return kind(**{name: _value(info, random) for name, info in field_types(kind).items()})


def _value(info: inspect.Type, random: Random) -> Any:
    match info:
        case inspect.NoneType():
            return None
        case inspect.BoolType():
            return random.random() < 0.5
        case inspect.IntType(ge=least, le=most):
            assert least is not None
            assert most is not None
            return random.choice(
                [least, most, max(least, 0), max(least, 1), random.randint(least, most)]
            )
        case inspect.FloatType():
            return random.choice([0.0, 0.25, random.random()])
        case inspect.UnionType(types=options):
            return _value(random.choice(options), random)
        case inspect.StructType(cls=kind):
            return random_body(kind, random)
    return _sized(info, random)


def _sized(info: inspect.Type, random: Random) -> Any:
    match info:
        case inspect.StrType(min_length=least, max_length=most):
            return "".join(random.choices(CHARACTERS, k=_length(least or 0, most, random)))
        case inspect.BytesType(min_length=least, max_length=most):
            return random.randbytes(_length(least or 0, most, random))
        case inspect.VarTupleType(item_type=item, min_length=least):
            count = random.randint(least or 0, ITEMS_MAX)
            return tuple(_value(item, random) for _ in range(count))
        case inspect.DictType(key_type=key, value_type=value):
            count = random.randint(0, ITEMS_MAX)
            return {_value(key, random): _value(value, random) for _ in range(count)}
    raise AssertionError(f"no values are known of {info}")


def _length(least: int, most: int | None, random: Random) -> int:
    assert most is not None
    return random.choice([least, min(most, 64), random.randint(least, min(most, 64))])
