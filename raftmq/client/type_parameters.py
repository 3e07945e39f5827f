"""Types of values and keys, for type checkers: `Consumer[Order]`, `ConsumerRecord[Order, str]`.

Owns the type parameters of the SDK's classes, the value's first. Their defaults are what is read
without deserializers, and taken without serializers. None comes on top: a record may have no value,
and no key. Invariant: at run time they mean nothing, and cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

# What producers take without a serializer.
GivenValue: TypeAlias = bytes | bytearray | memoryview | str
GivenKey: TypeAlias = GivenValue | int

if TYPE_CHECKING:
    from typing import Any
    from typing import Generic as Generic

    from typing_extensions import TypeVar  # part of every type checker; not imported at run time

    ValueT_co = TypeVar("ValueT_co", default=bytes, covariant=True)
    KeyT_co = TypeVar("KeyT_co", default=bytes | str | int, covariant=True)
    ValueT_contra = TypeVar("ValueT_contra", default=GivenValue, contravariant=True)
    KeyT_contra = TypeVar("KeyT_contra", default=GivenKey, contravariant=True)
    # Of serializers. Any: what a lambda takes is not known.
    ValueT = TypeVar("ValueT", default=Any)
    KeyT = TypeVar("KeyT", default=Any)
else:
    from types import GenericAlias
    from typing import TypeVar

    ValueT_co = TypeVar("ValueT_co", covariant=True)
    KeyT_co = TypeVar("KeyT_co", covariant=True)
    ValueT_contra = TypeVar("ValueT_contra", contravariant=True)
    KeyT_contra = TypeVar("KeyT_contra", contravariant=True)
    ValueT, KeyT = TypeVar("ValueT"), TypeVar("KeyT")

    class Generic:
        """For annotations that are evaluated. That of `typing` knows no defaults before Python
        3.13, and would refuse `Consumer[Order]`.
        """

        __slots__ = ()
        __class_getitem__ = classmethod(GenericAlias)
