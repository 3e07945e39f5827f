"""The error tree: what is drawn is what exists, and every error says enough to act on."""

from __future__ import annotations

import re

import pytest

from raftmq import errors
from raftmq.errors import (
    CorruptJournal,
    CorruptRecord,
    DirectoryInUse,
    Disconnected,
    DuplicateSequence,
    ErrorCode,
    InvalidConfig,
    InvalidRecord,
    LeaderNotAvailable,
    MessageTooLarge,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    OutcomeUnknown,
    ProposalUncertain,
    RaftmqError,
    RequestTimedOut,
    ServerError,
    StorageError,
    UnsupportedCompression,
    UnsupportedVersion,
    error_for,
)

# Kafka's protocol guide, "Error codes": name, number, retriable.
KAFKA_ERRORS = {
    "UNKNOWN_SERVER_ERROR": (-1, False),
    "NONE": (0, False),
    "OFFSET_OUT_OF_RANGE": (1, False),
    "CORRUPT_MESSAGE": (2, True),
    "MESSAGE_TOO_LARGE": (10, False),
    "INVALID_TIMESTAMP": (32, False),
    "INVALID_CONFIG": (40, False),
    "KAFKA_STORAGE_ERROR": (56, True),
    "NOT_LEADER_OR_FOLLOWER": (6, True),
    "FENCED_LEADER_EPOCH": (74, True),
    "UNSUPPORTED_COMPRESSION_TYPE": (76, False),
    "INVALID_RECORD": (87, False),
    "UNKNOWN_TOPIC_OR_PARTITION": (3, True),
    "REQUEST_TIMED_OUT": (7, True),
    "BROKER_NOT_AVAILABLE": (8, False),
    "OFFSET_METADATA_TOO_LARGE": (12, False),
    "NETWORK_EXCEPTION": (13, True),
    "NOT_COORDINATOR": (16, True),
    "INVALID_TOPIC_EXCEPTION": (17, False),
    "ILLEGAL_GENERATION": (22, False),
    "INVALID_GROUP_ID": (24, False),
    "UNKNOWN_MEMBER_ID": (25, False),
    "UNSUPPORTED_VERSION": (35, False),
    "TOPIC_ALREADY_EXISTS": (36, False),
    "INVALID_PARTITIONS": (37, False),
    "INVALID_REPLICATION_FACTOR": (38, False),
    "INVALID_REPLICA_ASSIGNMENT": (39, False),
    "NOT_CONTROLLER": (41, True),
    "INVALID_REQUEST": (42, False),
    "NON_EMPTY_GROUP": (68, False),
    "GROUP_ID_NOT_FOUND": (69, False),
    "UNKNOWN_LEADER_EPOCH": (75, True),
    "STALE_BROKER_EPOCH": (77, False),
    "PREFERRED_LEADER_NOT_AVAILABLE": (80, True),
    "ELIGIBLE_LEADERS_NOT_AVAILABLE": (83, True),
    "ELECTION_NOT_NEEDED": (84, True),
    "NO_REASSIGNMENT_IN_PROGRESS": (85, False),
    "THROTTLING_QUOTA_EXCEEDED": (89, True),
    "INVALID_UPDATE_VERSION": (95, False),
    "FEATURE_UPDATE_FAILED": (96, False),
    "UNKNOWN_TOPIC_ID": (100, True),
    "DUPLICATE_BROKER_REGISTRATION": (101, False),
    "BROKER_ID_NOT_REGISTERED": (102, False),
    "INCONSISTENT_TOPIC_ID": (103, True),
    "INCONSISTENT_CLUSTER_ID": (104, False),
    "LEADER_NOT_AVAILABLE": (5, True),
    "NOT_ENOUGH_REPLICAS": (19, True),
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": (20, True),
    "INVALID_REQUIRED_ACKS": (21, False),
    "TOPIC_AUTHORIZATION_FAILED": (29, False),
    "CLUSTER_AUTHORIZATION_FAILED": (31, False),
    "FETCH_SESSION_ID_NOT_FOUND": (70, True),
    "INVALID_FETCH_SESSION_EPOCH": (71, True),
    "OFFSET_NOT_AVAILABLE": (78, True),
    "INELIGIBLE_REPLICA": (107, False),
    "NEW_LEADER_ELECTED": (108, False),
    "COORDINATOR_LOAD_IN_PROGRESS": (14, True),
    "COORDINATOR_NOT_AVAILABLE": (15, True),
    "INCONSISTENT_GROUP_PROTOCOL": (23, False),
    "INCONSISTENT_GROUP_FILTER": (1000, False),
    "CANNOT_CANCEL": (1001, False),
    "INVALID_SESSION_TIMEOUT": (26, False),
    "REBALANCE_IN_PROGRESS": (27, False),
    "OUT_OF_ORDER_SEQUENCE_NUMBER": (45, False),
    "DUPLICATE_SEQUENCE_NUMBER": (46, False),
    "INVALID_PRODUCER_EPOCH": (47, False),
    "UNKNOWN_PRODUCER_ID": (59, False),
    "INVALID_TXN_STATE": (48, False),
    "INVALID_TRANSACTION_TIMEOUT": (50, False),
    "CONCURRENT_TRANSACTIONS": (51, True),
    "TRANSACTIONAL_ID_NOT_FOUND": (105, False),
    "TRANSACTION_ABORTABLE": (120, False),
    "MEMBER_ID_REQUIRED": (79, False),
    "GROUP_MAX_SIZE_REACHED": (81, False),
    "FENCED_INSTANCE_ID": (82, False),
    "GROUP_SUBSCRIBED_TO_TOPIC": (86, False),
    "PRODUCER_FENCED": (90, False),
}
NAMELESS = {RaftmqError, ServerError}
NEVER_TRAVEL = {DirectoryInUse, CorruptJournal}
TREE_LINE = re.compile(r"^ {4}([│ ]*(?:[├└]── )?)([A-Z]\w+)", re.MULTILINE)


def error_classes() -> list[type[RaftmqError]]:
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [value for value in found if issubclass(value, RaftmqError)]


def drawn_tree() -> dict[str, str]:
    """Each class of the drawing in the module's docstring, with its parent there."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in TREE_LINE.finditer(errors.__doc__ or ""):
        depth, name = len(line[1]) // 4, line[2]
        del path[depth:]
        parents[name] = path[-1] if path else "Exception"
        path.append(name)
    return parents


def test_the_drawing_in_the_docstring_is_the_tree_of_classes() -> None:
    """Whoever reads the top of raftmq.errors knows every error there is."""
    assert drawn_tree() == {cls.__name__: cls.__bases__[0].__name__ for cls in error_classes()}


@pytest.mark.parametrize("error", error_classes())
def test_every_error_says_what_it_is(error: type[RaftmqError]) -> None:
    """For `help` and the reference: in its own words, or in those of the tree."""
    own = vars(error).get("__doc__")
    assert own is not None
    assert own[0].isupper() or own.startswith("`")
    assert own.rstrip().endswith(".")


def test_numbers_are_those_of_kafka() -> None:
    """A Kafka client that gets one of our numbers knows what it means."""
    assert {code.name: code.value for code in ErrorCode} == {
        name: number for name, (number, _) in KAFKA_ERRORS.items()
    }


@pytest.mark.parametrize("error", [cls for cls in error_classes() if cls not in NAMELESS])
def test_every_error_has_a_number_of_its_own_kind(error: type[RaftmqError]) -> None:
    """No error travels as "unknown server error"."""
    assert error.code not in {ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE}


@pytest.mark.parametrize("error", [cls for cls in error_classes() if cls not in NEVER_TRAVEL])
def test_errors_are_retriable_where_kafka_says_so(error: type[RaftmqError]) -> None:
    """Client and broker agree on what is worth another try (some never travel)."""
    assert error.retriable == KAFKA_ERRORS[error.code.name][1]


@pytest.mark.parametrize("error", error_classes())
def test_only_an_error_worth_a_retry_asks_for_fresh_metadata(error: type[RaftmqError]) -> None:
    """Asking who leads serves the next attempt; without one it serves nothing."""
    assert error.retriable or not error.refresh_metadata


def test_what_may_have_happened_is_indefinite() -> None:
    """A failed write may be found after a restart, a cut record in the new leader's log."""
    indefinite = {cls for cls in error_classes() if not cls.definite}
    assert indefinite == {
        StorageError, NotLeaderOrFollower, ProposalUncertain, NotEnoughReplicasAfterAppend,
        RequestTimedOut, OutcomeUnknown, Disconnected, ServerError, DuplicateSequence,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CorruptRecord("bad magic"), "corrupt record: bad magic"),
        (CorruptRecord("bad magic", position=0), "corrupt record: bad magic at byte 0"),
        (
            CorruptRecord("bad magic", position=61, where="a.log"),
            "corrupt record: bad magic at byte 61 of a.log",
        ),
        (CorruptRecord("bad magic", where="a.log"), "corrupt record: bad magic of a.log"),
    ],
)
def test_corruption_says_what_and_where(error: CorruptRecord, text: str) -> None:
    """The operator can find the byte; position 0 is a position."""
    assert str(error) == text


def test_corruption_keeps_its_parts_for_programs() -> None:
    """A reader acts on the position without parsing the text."""
    error = CorruptRecord("bad magic", position=61, where="a.log")
    assert (error.what, error.position, error.where) == ("bad magic", 61, "a.log")


def test_a_bad_configuration_names_every_problem() -> None:
    """All problems are in the text, and apart from each other in `problems`."""
    error = InvalidConfig(["a = 1: too small", "b: unknown"])
    assert str(error) == "a = 1: too small; b: unknown"
    assert error.problems == ["a = 1: too small", "b: unknown"]


@pytest.mark.parametrize(
    "error",
    [InvalidRecord, MessageTooLarge, OffsetOutOfRange, StorageError, UnsupportedCompression],
)
def test_other_errors_say_what_they_are_told(error: type[RaftmqError]) -> None:
    """Whoever raises knows the circumstances; the class adds nothing to the text."""
    assert str(error("write /data/x: no space left")) == "write /data/x: no space left"


def test_a_version_that_is_not_known_can_be_answered() -> None:
    """Whoever asked waits for an answer with the number of the request."""
    assert UnsupportedVersion("request 7", correlation_id=0).correlation_id == 0
    assert UnsupportedVersion("request 7").correlation_id is None


@pytest.mark.parametrize("cls", [cls for cls in error_classes() if cls not in NEVER_TRAVEL])
def test_an_answer_promises_no_more_than_what_was_raised(cls: type[RaftmqError]) -> None:
    """An error travels as its number; the one made of it is at most as sure of the outcome."""
    error = error_for(cls.code, "topic t is full")
    assert error.code == cls.code
    assert error.retriable == cls.retriable
    assert cls.definite or not error.definite
    assert str(error).endswith("topic t is full")


def test_classes_that_share_a_number_have_one_that_stands_for_it() -> None:
    """The general one, where whoever raised the other meant something special."""
    assert {
        code.name: type(error_for(code, "x")).__name__
        for code in ErrorCode
        if sum(cls.code == code for cls in error_classes()) > 1
    } == {
        "UNKNOWN_SERVER_ERROR": "ServerError",
        "INVALID_RECORD": "InvalidRecord",
        "OFFSET_OUT_OF_RANGE": "OffsetOutOfRange",
        "NOT_LEADER_OR_FOLLOWER": "NotLeaderOrFollower",
        "REQUEST_TIMED_OUT": "RequestTimedOut",
        "NETWORK_EXCEPTION": "Disconnected",
        "UNSUPPORTED_VERSION": "UnsupportedVersion",
        "THROTTLING_QUOTA_EXCEEDED": "QuorumBusy",
        "NOT_CONTROLLER": "NotController",
        "INVALID_REQUEST": "InvalidRequest",
        "KAFKA_STORAGE_ERROR": "StorageError",
    }


def test_an_error_without_a_class_keeps_its_number() -> None:
    """One that Kafka has and we have not, and one of a newer version."""
    known = error_for(ErrorCode.FEATURE_UPDATE_FAILED, "level 9 is not known")
    assert isinstance(known, ServerError)
    assert (known.number, known.code) == (96, ErrorCode.FEATURE_UPDATE_FAILED)
    newer = error_for(4711, "of the future")
    assert isinstance(newer, ServerError)
    assert (newer.number, newer.code) == (4711, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert str(newer) == "of the future"


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.OFFSET_METADATA_TOO_LARGE,
    ],
)
def test_refusals_of_groups_say_that_nothing_was_done(code: ErrorCode) -> None:
    """Each number that has to do with consumer groups has a class, and is definite."""
    error = error_for(code, "group g")
    assert not isinstance(error, ServerError)
    assert error.definite


def test_errors_that_are_made_in_another_way_keep_their_text() -> None:
    """What the sender's class put around the text is not put around it twice."""
    corrupt = CorruptRecord("bad magic", position=61)
    assert str(error_for(corrupt.code, str(corrupt))) == str(corrupt)
    config = error_for(ErrorCode.INVALID_CONFIG, "a = 1: too small")
    assert isinstance(config, InvalidConfig)
    assert config.problems == ["a = 1: too small"]


def test_no_error_is_no_error() -> None:
    """Whoever makes one of number 0 has not looked."""
    with pytest.raises(AssertionError):
        error_for(ErrorCode.NONE, "")


def test_an_error_of_one_partition_is_a_copy() -> None:
    """Of one failed request many partitions are told; notes of one are not those of another."""
    error = CorruptRecord("bad magic", position=4)
    error.__cause__ = ValueError("cause")
    error.add_note("first")
    copy = error.at("orders", 3)
    copy.add_note("second")
    assert (type(copy), copy.position, copy.__cause__) == (CorruptRecord, 4, error.__cause__)
    assert (copy.topic, copy.partition, error.topic) == ("orders", 3, None)
    assert (error.__notes__, copy.__notes__) == (["first"], ["first", "second"])


@pytest.mark.parametrize(
    ("topic", "partition", "text", "told"),
    [
        ("orders", 1, "too few in sync", "orders-1: too few in sync"),
        ("orders", 1, "orders-1: nobody leads", "orders-1: nobody leads"),
        ("orders", 1, "orders-10: nobody leads", "orders-1: orders-10: nobody leads"),
        ("t", None, "not in time", "t: not in time"),
        ("t", None, "there is no topic 't'", "there is no topic 't'"),
        (None, None, "not in time", "not in time"),
    ],
)
def test_an_error_names_its_topic_once(
    topic: str | None, partition: int | None, text: str, told: str
) -> None:
    """In front of the text, unless that names it as a word of its own."""
    error = LeaderNotAvailable(text)
    error.topic, error.partition = topic, partition
    assert str(error) == told
