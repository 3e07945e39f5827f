"""Message bodies: base classes, field types and limits of the protocol, msgpack encode and decode.

A body is a msgpack array of its fields. Fields may be added at the end, with a default: an older
version ignores them, a newer one fills in the default. Decoding checks types strictly and every
limit; encoding checks nothing, as limits protect from what other processes send (`check_limits`
checks what a program passed in). Absent numbers are -1.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, ClassVar, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from raftmq.errors import ErrorCode, InvalidRequest, RemoteProtocolError
from raftmq.model import TRANSACTION_ID_CHARS_MAX, IsolationLevel
from raftmq.wire.nesting import new_decoder

# As in Kafka's protocol: never a valid id, epoch or offset.
ABSENT = -1
NUMBER_MAX = (1 << 63) - 1  # i64, as in Kafka's protocol and in the batch header
ID_MAX = (1 << 31) - 1  # i32, as Kafka's ids and epochs
ID_BYTES = 16  # a UUID
PRODUCER_EPOCH_MAX = (1 << 15) - 1  # the i16 of the batch header
# Limits of one message: far above real use, and low enough to bound the memory that a decoded
# message takes. Clients split what is larger.
NAME_CHARS_MAX = 255
MESSAGE_CHARS_MAX = 1_000  # of an error, whose longer text is clipped
PARTITIONS_MAX = 10_000
REPLICAS_MAX = 100  # of one partition
TOPICS_MAX = 1_000
BROKERS_MAX = 10_000
TEXT_CHARS_MAX = 10_000  # of a topic's configuration: one key, one value
CONFIG_KEYS_MAX = 1_000
TIMEOUT_MS = 30_000  # how long a broker may work on a request that names no timeout; as in Kafka

Natural: TypeAlias = Annotated[int, Meta(ge=0, le=NUMBER_MAX)]
Number: TypeAlias = Annotated[int, Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
NaturalOrAbsent: TypeAlias = Annotated[int, Meta(ge=ABSENT, le=NUMBER_MAX)]
Offset: TypeAlias = Natural
OffsetOrAbsent: TypeAlias = NaturalOrAbsent
Timestamp: TypeAlias = NaturalOrAbsent  # milliseconds since 1970-01-01 UTC
LeaderEpoch: TypeAlias = Annotated[int, Meta(ge=0, le=ID_MAX)]  # 32 bits in every batch
LeaderEpochOrAbsent: TypeAlias = Annotated[int, Meta(ge=ABSENT, le=ID_MAX)]
BrokerEpoch: TypeAlias = Natural
BrokerId: TypeAlias = Annotated[int, Meta(ge=0, le=ID_MAX)]
BrokerIdOrAbsent: TypeAlias = Annotated[int, Meta(ge=ABSENT, le=ID_MAX)]
Partition: TypeAlias = Annotated[int, Meta(ge=0, le=ID_MAX)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=ID_MAX)]
ByteCount: TypeAlias = Annotated[int, Meta(ge=0, le=ID_MAX)]
Port: TypeAlias = Annotated[int, Meta(ge=0, le=65_535)]
# Any i16, not only known codes: a newer version has others (`raftmq.errors.error_for`).
ErrorNumber: TypeAlias = Annotated[int, Meta(ge=-(1 << 15), le=(1 << 15) - 1)]
Version: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 15) - 1)]
TopicId: TypeAlias = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
ACKS_ALL, ACKS_NONE = -1, 0  # all replicas in sync; no answer at all
Acks: TypeAlias = Annotated[int, Meta(ge=-1, le=REPLICAS_MAX)]  # else that many replicas
Name: TypeAlias = Annotated[str, Meta(max_length=NAME_CHARS_MAX)]
ErrorMessage: TypeAlias = Annotated[str, Meta(max_length=MESSAGE_CHARS_MAX)]
Generation: TypeAlias = Annotated[int, Meta(ge=ABSENT, le=ID_MAX)]  # of a consumer group
ProducerEpoch: TypeAlias = Annotated[int, Meta(ge=ABSENT, le=PRODUCER_EPOCH_MAX)]
TransactionId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=TRANSACTION_ID_CHARS_MAX)]
TransactionIdOrNone: TypeAlias = Annotated[str, Meta(max_length=TRANSACTION_ID_CHARS_MAX)]
Owner: TypeAlias = Annotated[bytes, Meta(max_length=ID_BYTES)]  # of a transaction id; empty: none
Isolation: TypeAlias = Annotated[int, Meta(ge=0, le=max(IsolationLevel).value)]
MemberId: TypeAlias = Name  # of a consumer group; empty: not known yet
SlotEpoch: TypeAlias = Natural  # the coordinator's, as the client knows it; 0: an older client
BrokerIds: TypeAlias = Annotated[tuple[BrokerId, ...], Meta(max_length=REPLICAS_MAX)]
ConfigText: TypeAlias = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
Configs: TypeAlias = Annotated[dict[Name, ConfigText], Meta(max_length=CONFIG_KEYS_MAX)]


class Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message, or a part of one."""


BodyT = TypeVar("BodyT", bound=Body)


# Every request of the protocol by number and version. `raftmq.wire.messages` fills it.
REQUESTS: dict[tuple[int, int], type[Request]] = {}


class Request(Body, frozen=True):
    """A message that begins an exchange. Its class says all about the request, and enters itself
    into `REQUESTS`.
    """

    # Never changes its meaning. Kafka's if the request means the same; our own begin at 1000.
    api_key: ClassVar[int]
    # Raised when the meaning changes, in a class of its own, not for a new field.
    version: ClassVar[int] = 0
    reply: ClassVar[type[Body]]
    # Refused on the listeners of clients, who could take a broker's place.
    is_for_brokers: ClassVar[bool] = False
    # Never answered, not even with an error: the next report replaces a lost one.
    is_one_way: ClassVar[bool] = False
    # Answered when other clients have done something, perhaps minutes later. It does not count
    # against the in-flight limit of a connection: several members of a group may share one, and
    # would keep each other from joining.
    is_patient: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        known = REQUESTS.setdefault((cls.api_key, cls.version), cls)
        assert known is cls, f"{cls.__name__} has the number of {known.__name__}, {cls.api_key}"


class Nothing(Body, frozen=True):
    """A reply without fields; also stands for the reply of requests that are not answered."""


class TopicPartition(Body, frozen=True):
    topic_id: TopicId
    partition: Partition


class TopicOutcome(Body, frozen=True):
    """The outcome of a request for one topic."""

    topic_id: TopicId
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""


class PartitionOutcome(Body, frozen=True):
    """The outcome of a request for one partition."""

    topic_id: TopicId
    partition: Partition
    error: ErrorNumber = ErrorCode.NONE
    message: ErrorMessage = ""


_encoder = msgspec.msgpack.Encoder()


def decode_checked_body(body_type: type[BodyT], data: bytes | memoryview | msgspec.Raw) -> BodyT:
    """The body of bytes that `check_nesting` has passed, alone or in their header.

    Raises:
        RemoteProtocolError: not such a body, or over a limit; names the field.
    """
    try:
        body: BodyT = _decoder(body_type).decode(data)
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise RemoteProtocolError(f"{body_type.__name__}: {error}") from error
    return body


def check_limits(body: BodyT) -> BodyT:
    """`body`, if the other side will accept it. For values that a program passed in; costs as much
    as sending it.

    Raises:
        InvalidRequest: names the field that is over a limit.
    """
    try:
        _decoder(type(body)).decode(_encoder.encode(body))
    # TypeError, OverflowError: of the encoder.
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidRequest(f"{type(body).__name__}: {error}") from error
    return body


def clip_message(message: str) -> str:
    """`message` as the protocol allows it: clipped to the limit, and valid UTF-8."""
    clipped = (
        message if len(message) <= MESSAGE_CHARS_MAX else f"{message[: MESSAGE_CHARS_MAX - 1]}…"
    )
    return clipped.encode("utf-8", "replace").decode("utf-8")


@cache
def _decoder(body_type: type[BodyT]) -> msgspec.msgpack.Decoder[BodyT]:
    return new_decoder(body_type)
