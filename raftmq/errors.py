"""All exceptions of raftmq, with Kafka's error numbers; which are retriable, which definite.

    RaftmqError
    ├── CorruptRecord           bytes that are not what they claim to be
    ├── UnsupportedCompression  codec unknown, or its package is not installed
    ├── InvalidRecord           well-formed, but not allowed here
    │   └── InvalidTimestamp    too far in the future
    ├── MessageTooLarge         batch over max.message.bytes
    ├── OffsetOutOfRange        below the log start or beyond the log end
    │   └── LogTruncation       ... because the log lost records that were read already
    ├── CannotCancel            a scheduled record that is not, or not any more, to be delivered
    ├── OffsetNotAvailable      a new leader, whose high watermark is not established yet
    ├── UnknownTopicOrPartition no such topic or partition, as far as that broker knows
    ├── UnknownTopicId          the topic was deleted, or that broker does not know it yet
    ├── LeaderNotAvailable      the partition has no leader now
    ├── NotLeaderOrFollower     the role of this replica has changed meanwhile
    │   └── LeaderElsewhere     ... and nothing was appended
    ├── FencedLeaderEpoch       from a leader, or to one, that has been replaced since
    ├── UnknownLeaderEpoch      of a leader that this broker does not know yet
    ├── NotEnoughReplicas       too few in sync for acks=all; nothing was appended
    ├── NotEnoughReplicasAfterAppend  ... and it was appended
    ├── InvalidRequiredAcks     acks is neither -1 nor a number of replicas that there are
    ├── FetchSessionIdNotFound  the broker has forgotten the session: begin a new one
    ├── InvalidFetchSessionEpoch  the two sides disagree on the session: begin a new one
    ├── TopicAuthorizationFailed  not allowed with this topic
    ├── ClusterAuthorizationFailed  not allowed with this cluster, or not on this listener
    ├── InconsistentClusterId   it belongs to another cluster
    ├── StaleBrokerEpoch        from a broker process that has been replaced since
    ├── BrokerIdNotRegistered   the cluster knows no such broker
    ├── BrokerNotAvailable      its process does not run, or has ended before it was ready
    ├── UnsupportedVersion      a request, or a version of one, that the other side does not know
    ├── InvalidRequest          it decodes, but makes no sense
    ├── InvalidTopic            not a name that a topic may have
    ├── TopicAlreadyExists      there is a topic of this name; it was not changed
    ├── InvalidConfig           a bad topic or broker setting; names every bad key
    ├── InvalidPartitions       no partitions, too many, or fewer than there are
    ├── InvalidReplicationFactor  more replicas than active brokers, or than allowed
    ├── InvalidReplicaAssignment  replicas on brokers that do not exist, or twice on one
    ├── InvalidUpdateVersion    it was changed since the caller read it; nothing was changed now
    ├── PreferredLeaderNotAvailable  the first replica is not in sync
    ├── EligibleLeadersNotAvailable  no replica may lead
    ├── ElectionNotNeeded       it leads already
    ├── InvalidCommand          a metadata command that is too large or does not decode
    │   └── NewerCommand        one that only a newer version knows; this node must stop
    ├── NotCoordinator          another broker coordinates the group
    ├── InvalidGroupId          not a name that a group may have
    ├── GroupIdNotFound         no such group
    ├── NonEmptyGroup           it has members: have them leave first
    ├── UnknownMemberId         the group has no such member, or not any more
    ├── IllegalGeneration       of a generation of the group that is over
    ├── OffsetMetadataTooLarge  the text that goes with a committed offset
    ├── CoordinatorLoadInProgress  a new coordinator has not loaded the group yet
    ├── CoordinatorNotAvailable the group has no coordinator now
    ├── InconsistentGroupProtocol  no assignor that all members support
    ├── InconsistentGroupFilter  the members of the group have another filter of tags
    ├── InvalidSessionTimeout   shorter or longer than the coordinator allows
    ├── RebalanceInProgress     the group assigns its partitions anew: join again
    ├── MemberIdRequired        join once more, with the id that the answer gives
    ├── GroupMaxSizeReached     the group has as many members as it may have
    ├── FencedInstanceId        another process has joined under the same instance id
    ├── GroupSubscribedToTopic  members of the group read the topic
    ├── OutOfOrderSequence      not the number that comes next of that producer
    ├── DuplicateSequence       it stands in the log already, at an offset that was forgotten
    ├── InvalidProducerEpoch    of an epoch of that producer that is over
    ├── UnknownProducerId       the partition does not know that producer; begin at sequence 0
    ├── TooManyProducers        more than a partition remembers at a time
    ├── ProducerFenced          another process continues under the same name or transaction id
    ├── InvalidTransaction      what a transaction may not do; nothing of it was done
    ├── UnknownTransaction      the cluster knows no such transaction id (any more)
    ├── InvalidTransactionTimeout  shorter or longer than the cluster allows
    ├── ConcurrentTransactions  the producer's transaction before is not over there yet
    ├── TransactionAborted      nothing of the transaction counts: run it again
    ├── ReplayMismatch          a named producer sends other records than the first time
    ├── NotController           this node does not lead the metadata quorum
    ├── QuorumBusy              too many proposals wait already
    ├── ProposalDiscarded       another command took its place in the quorum's log
    ├── RequestTimedOut         no answer in time; it may have been carried out
    │   └── BufferExhausted     ... of a blocking call that waited for memory; nothing was sent
    ├── ProposalUncertain       the outcome of a proposal is unknown
    ├── OutcomeUnknown          a client gave up, and cannot know whether it was carried out
    ├── DeliveryTimedOut        a producer gave up, and certainly nothing was appended
    ├── BufferFull              a producer's memory is used up for now
    ├── UndecodableRecord       text(), json() or a deserializer has failed with a consumed record
    ├── Closed                  a client, producer or consumer that is not open
    ├── Disconnected            the connection ended before the answer came
    ├── Unreachable             no connection to an address, or no listening there
    ├── RemoteProtocolError     a peer broke the protocol; its connection was closed
    │   └── ForeignProtocol     ... as it speaks another one: HTTP, TLS, Kafka's
    ├── StorageError            the disk refused; that log is offline until a restart
    │   ├── DirectoryInUse      another process holds the data directory
    │   └── CorruptJournal      the quorum's own files are damaged, or not this node's
    └── ServerError             an answer with a number that has no class here

`definite`: the operation certainly did not happen; an indefinite error leaves it open. `retriable`:
the same call may succeed later. `refresh_metadata`: the client should refresh its metadata before
it retries, as another broker may lead. `_FIRST` has the class to raise for a number that several
classes share (`error_for`).
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any, ClassVar, Self, TypeVar

from raftmq.error_numbers import ErrorCode

__all__ = [
    "BrokerIdNotRegistered", "BrokerNotAvailable", "BufferExhausted", "BufferFull", "CannotCancel",
    "Closed", "ClusterAuthorizationFailed", "ConcurrentTransactions", "CoordinatorLoadInProgress",
    "CoordinatorNotAvailable", "CorruptJournal", "CorruptRecord", "DeliveryTimedOut",
    "DirectoryInUse", "Disconnected", "DuplicateSequence", "ElectionNotNeeded",
    "EligibleLeadersNotAvailable", "ErrorCode", "FencedInstanceId", "FencedLeaderEpoch",
    "FetchSessionIdNotFound", "ForeignProtocol", "GroupIdNotFound", "GroupMaxSizeReached",
    "GroupSubscribedToTopic", "IllegalGeneration", "InconsistentClusterId",
    "InconsistentGroupFilter", "InconsistentGroupProtocol", "InvalidCommand", "InvalidConfig",
    "InvalidFetchSessionEpoch", "InvalidGroupId", "InvalidPartitions", "InvalidProducerEpoch",
    "InvalidRecord", "InvalidReplicaAssignment", "InvalidReplicationFactor", "InvalidRequest",
    "InvalidRequiredAcks", "InvalidSessionTimeout", "InvalidTimestamp", "InvalidTopic",
    "InvalidTransaction", "InvalidTransactionTimeout", "InvalidUpdateVersion", "LeaderElsewhere",
    "LeaderNotAvailable", "LogTruncation", "MemberIdRequired", "MessageTooLarge", "NewerCommand",
    "NonEmptyGroup", "NotController", "NotCoordinator", "NotEnoughReplicas",
    "NotEnoughReplicasAfterAppend", "NotLeaderOrFollower", "OffsetMetadataTooLarge",
    "OffsetNotAvailable", "OffsetOutOfRange", "OutOfOrderSequence", "OutcomeUnknown",
    "PreferredLeaderNotAvailable", "ProducerFenced", "ProposalDiscarded", "ProposalUncertain",
    "QuorumBusy", "RaftmqError", "RebalanceInProgress", "RemoteProtocolError", "ReplayMismatch",
    "RequestTimedOut", "ServerError", "StaleBrokerEpoch", "StorageError", "TooManyProducers",
    "TopicAlreadyExists", "TopicAuthorizationFailed", "TransactionAborted", "UndecodableRecord",
    "UnknownLeaderEpoch", "UnknownMemberId", "UnknownProducerId", "UnknownTopicId",
    "UnknownTopicOrPartition", "UnknownTransaction", "Unreachable", "UnsupportedCompression",
    "UnsupportedVersion", "error_for", "without_frames",
]  # fmt: skip


# -- The base -------------------------------------------------------------------------------------
# The base of all errors: number, flags, and the topic or partition that an error is about.


class RaftmqError(Exception):
    """Base of the tree; `str()` names the thing and, if there is one, the way out.

    Attributes:
        topic, partition, broker: which ones it is about; None if not known.
    """

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    # Most errors refuse a request before it changes anything, and another try would meet the same.
    retriable: ClassVar[bool] = False
    refresh_metadata: ClassVar[bool] = False
    definite: ClassVar[bool] = True
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None

    def __str__(self) -> str:
        text = super().__str__()
        if self.topic is None:
            return text
        where = self.topic if self.partition is None else f"{self.topic}-{self.partition}"
        names_it = re.search(rf"(?<![\w.-]){re.escape(where)}(?![\w.-])", text)
        return text if names_it else f"{where}: {text}"

    def at(self, topic: str, partition: int | None = None) -> Self:
        """A copy for one topic or partition: a failed request may have been about many."""
        copy = self.copied()
        copy.topic, copy.partition = topic, partition
        return copy

    def copied(self) -> Self:
        """A copy to raise in another task: each copy has its own traceback and notes."""
        copy = type(self).__new__(type(self))
        copy.args = self.args
        copy.__dict__.update(self.__dict__)
        if "__notes__" in copy.__dict__:  # a list of its own, not the original's
            copy.__notes__ = list(copy.__notes__)
        copy.__cause__ = self.__cause__
        return copy


# -- Records --------------------------------------------------------------------------------------
# Errors of records and of places in a log.


class CorruptRecord(RaftmqError):
    """Bytes that do not decode: names what is wrong, and at which byte of which file or buffer.

    Attributes:
        position: byte position of the damage, counted from the start of what was decoded
            (a buffer) or of the file that `where` names; None if it has no position.
        where: the file or log, if the bytes came from one.
        offset: of the record in its log, if the code that found it knows it.
    """

    code = ErrorCode.CORRUPT_MESSAGE
    retriable = True  # damaged on the way, or on one replica's disk only

    def __init__(
        self, what: str, *, position: int | None = None, where: str = "", offset: int | None = None
    ) -> None:
        self.what, self.position, self.where, self.offset = what, position, where, offset
        at = "" if position is None else f" at byte {position}"
        super().__init__(f"corrupt record: {what}{at}{f' of {where}' if where else ''}")


class UnsupportedCompression(RaftmqError):
    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


class InvalidRecord(RaftmqError):
    code = ErrorCode.INVALID_RECORD


class InvalidTimestamp(InvalidRecord):
    """`allowed`: the highest timestamp that the broker took at that time; -1: not known."""

    code = ErrorCode.INVALID_TIMESTAMP
    allowed = -1


class MessageTooLarge(RaftmqError):
    """`allowed`: bytes of a batch that the topic takes; -1: not known, or another limit."""

    code = ErrorCode.MESSAGE_TOO_LARGE
    allowed = -1


class OffsetOutOfRange(RaftmqError):
    code = ErrorCode.OFFSET_OUT_OF_RANGE


class LogTruncation(OffsetOutOfRange):
    """The log lost records that were read already, as after an unclean election. `offset`: before
    it nothing has changed."""

    def __init__(self, what: str, *, offset: int) -> None:
        self.offset = offset
        super().__init__(what)


class CannotCancel(RaftmqError):
    """`reason`: "delivered", "cancelled" (before), "aborted" (its transaction), or "unknown": no
    such record is scheduled, or it was settled and deleted since.
    """

    code = ErrorCode.CANNOT_CANCEL
    reason: str = ""


class OffsetNotAvailable(RaftmqError):
    code = ErrorCode.OFFSET_NOT_AVAILABLE
    retriable = True  # until its high watermark has reached its epoch


# -- Partitions -----------------------------------------------------------------------------------
# Errors of partitions: leaders, epochs, in-sync replicas, fetch sessions, elections.


class UnknownTopicOrPartition(RaftmqError):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    retriable = True  # a new topic may not have reached that broker yet
    refresh_metadata = True  # another broker may know it already


class UnknownTopicId(RaftmqError):
    code = ErrorCode.UNKNOWN_TOPIC_ID
    retriable = True  # a new topic may not have reached that broker yet
    refresh_metadata = True  # the name may have a new topic id


class LeaderNotAvailable(RaftmqError):
    code = ErrorCode.LEADER_NOT_AVAILABLE
    retriable = True  # until an election, or until a broker is back
    refresh_metadata = True  # to hear of the new leader


class NotLeaderOrFollower(RaftmqError):
    """Indefinite: what was appended here may stand in the new leader's log."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    retriable = True  # at the new leader
    refresh_metadata = True  # another broker leads
    definite = False  # it may have been appended here, and copied


class LeaderElsewhere(NotLeaderOrFollower):
    """Nothing was appended: another broker leads, or this one has not begun to lead yet."""

    definite = True  # raised before the append


class FencedLeaderEpoch(RaftmqError):
    code = ErrorCode.FENCED_LEADER_EPOCH
    retriable = True  # with the epoch of newer metadata
    refresh_metadata = True  # the client's leader is out of date


class UnknownLeaderEpoch(RaftmqError):
    """The client's metadata is newer than the broker's: try again after a pause."""

    code = ErrorCode.UNKNOWN_LEADER_EPOCH
    retriable = True  # until the broker has the newer metadata


class NotEnoughReplicas(RaftmqError):
    code = ErrorCode.NOT_ENOUGH_REPLICAS
    retriable = True  # until followers are back in sync


class NotEnoughReplicasAfterAppend(RaftmqError):
    """Indefinite: the leader has it, and it is committed once the others come back."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
    retriable = True  # idempotent producers: a repeat is found as a duplicate
    definite = False  # it is in the leader's log


class InvalidRequiredAcks(RaftmqError):
    code = ErrorCode.INVALID_REQUIRED_ACKS


class FetchSessionIdNotFound(RaftmqError):
    code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    retriable = True  # with a new session, which loses nothing


class InvalidFetchSessionEpoch(RaftmqError):
    code = ErrorCode.INVALID_FETCH_SESSION_EPOCH
    retriable = True  # with a new session, which loses nothing


class PreferredLeaderNotAvailable(RaftmqError):
    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    retriable = True  # until the first replica is in sync again
    refresh_metadata = True  # the ISR may have changed


class EligibleLeadersNotAvailable(RaftmqError):
    code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    retriable = True  # until a replica is back that may lead
    refresh_metadata = True  # the ISR may have changed


class ElectionNotNeeded(RaftmqError):
    code = ErrorCode.ELECTION_NOT_NEEDED
    retriable = True  # as in Kafka
    refresh_metadata = True  # the caller's leader is out of date


# -- Topics ---------------------------------------------------------------------------------------
# Errors of topics: names, configuration, partitions and their replicas.


class InvalidTopic(RaftmqError):
    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class TopicAlreadyExists(RaftmqError):
    code = ErrorCode.TOPIC_ALREADY_EXISTS


class InvalidConfig(RaftmqError):
    """`problems` holds one line per bad key."""

    code = ErrorCode.INVALID_CONFIG

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("; ".join(problems))


class InvalidPartitions(RaftmqError):
    code = ErrorCode.INVALID_PARTITIONS


class InvalidReplicationFactor(RaftmqError):
    code = ErrorCode.INVALID_REPLICATION_FACTOR


class InvalidReplicaAssignment(RaftmqError):
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT


class InvalidUpdateVersion(RaftmqError):
    code = ErrorCode.INVALID_UPDATE_VERSION


# -- Groups ---------------------------------------------------------------------------------------
# Errors of consumer groups and of the offsets that they commit.


class NotCoordinator(RaftmqError):
    """Another broker coordinates the group, or will in a moment: find the coordinator again."""

    code = ErrorCode.NOT_COORDINATOR
    retriable = True  # at the coordinator
    refresh_metadata = True  # find the coordinator anew


class InvalidGroupId(RaftmqError):
    code = ErrorCode.INVALID_GROUP_ID


class GroupIdNotFound(RaftmqError):
    code = ErrorCode.GROUP_ID_NOT_FOUND


class NonEmptyGroup(RaftmqError):
    code = ErrorCode.NON_EMPTY_GROUP


class UnknownMemberId(RaftmqError):
    """The coordinator removed the member, or another took its place: join anew."""

    code = ErrorCode.UNKNOWN_MEMBER_ID


class IllegalGeneration(RaftmqError):
    """Partitions were assigned to other members since: join anew."""

    code = ErrorCode.ILLEGAL_GENERATION


class OffsetMetadataTooLarge(RaftmqError):
    code = ErrorCode.OFFSET_METADATA_TOO_LARGE


class CoordinatorLoadInProgress(RaftmqError):
    """The coordinator is new and has not loaded the group yet: try again."""

    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    retriable = True  # loading takes a moment


class CoordinatorNotAvailable(RaftmqError):
    """The group has no coordinator at the moment: try again."""

    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    retriable = True  # until another broker takes the group over
    refresh_metadata = True  # to find the new coordinator


class InconsistentGroupProtocol(RaftmqError):
    """No assignor that all members of the group support: configure one in common."""

    code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL


class InconsistentGroupFilter(RaftmqError):
    """The members of the group read by another filter of tags: all have to have the same."""

    code = ErrorCode.INCONSISTENT_GROUP_FILTER


class InvalidSessionTimeout(RaftmqError):
    code = ErrorCode.INVALID_SESSION_TIMEOUT


class RebalanceInProgress(RaftmqError):
    """The group assigns its partitions anew: join again. Nothing was changed."""

    code = ErrorCode.REBALANCE_IN_PROGRESS


class MemberIdRequired(RaftmqError):
    """The coordinator has assigned a member id: join once more, with it."""

    code = ErrorCode.MEMBER_ID_REQUIRED


class GroupMaxSizeReached(RaftmqError):
    code = ErrorCode.GROUP_MAX_SIZE_REACHED


class FencedInstanceId(RaftmqError):
    """Another process has joined with the same `group_instance_id`: only one of them may run."""

    code = ErrorCode.FENCED_INSTANCE_ID


class GroupSubscribedToTopic(RaftmqError):
    """Members of the group read the topic: its offsets stay until they have left."""

    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


# -- Producers ------------------------------------------------------------------------------------
# Errors of idempotent and named producers: sequences, epochs, fences.


class OutOfOrderSequence(RaftmqError):
    """Not the next sequence number of that producer; nothing was appended."""

    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class DuplicateSequence(RaftmqError):
    """It stands in the log already, once; its offset is not remembered any more. Indefinite: the
    append did happen.
    """

    code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    definite = False  # the first copy was appended


class InvalidProducerEpoch(RaftmqError):
    """The producer has begun a later epoch; nothing was appended."""

    code = ErrorCode.INVALID_PRODUCER_EPOCH


class UnknownProducerId(RaftmqError):
    """The partition does not know that producer (any more), and its sequence does not begin at 0;
    nothing was appended.
    """

    code = ErrorCode.UNKNOWN_PRODUCER_ID


class TooManyProducers(RaftmqError):
    """The partition remembers as many producers as it may, and all have appended lately; nothing
    was appended.
    """

    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED  # Kafka has no number of its own for it
    retriable = True  # until one has been idle for long enough


class ProducerFenced(RaftmqError):
    """Another process has fenced the same producer name, or opened the same transaction id;
    nothing was appended.
    """

    code = ErrorCode.PRODUCER_FENCED


class InvalidTransaction(RaftmqError):
    """What a transaction, or a producer without one, may not do; nothing of it was done."""

    code = ErrorCode.INVALID_TXN_STATE


class UnknownTransaction(RaftmqError):
    """The cluster knows no such transaction id: it was never opened, or forgotten since. What it
    has committed before stays so.
    """

    code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


class InvalidTransactionTimeout(RaftmqError):
    """A transaction's timeout below the least or above the largest that the cluster allows."""

    code = ErrorCode.INVALID_TRANSACTION_TIMEOUT


class ConcurrentTransactions(RaftmqError):
    """The broker has not heard yet what became of the producer's transaction before, or too many
    are not settled yet; nothing was appended or decided. Over within milliseconds.
    """

    code = ErrorCode.CONCURRENT_TRANSACTIONS
    retriable = True


class TransactionAborted(RaftmqError):
    """The transaction was aborted: none of its records and offsets counts. Run it again.

    Attributes:
        reason: why: of "program", "timeout", "operator", "owner", "failed send", "group"; empty
            where the broker does not say.
    """

    code = ErrorCode.TRANSACTION_ABORTABLE
    reason: str = ""


class ReplayMismatch(RaftmqError):
    """A named producer sends other records than the first time in the same generation, or to
    another number of partitions. None of the records that fail with it was appended; other
    partitions may have taken some of this run before. Or a version of a shared transaction was
    committed before, with another number of rows. Raised in the client, never sent.
    """

    code = ErrorCode.INVALID_REQUEST  # never sent


# -- The cluster ----------------------------------------------------------------------------------
# Errors of the cluster: rights, brokers, and the metadata quorum.


class TopicAuthorizationFailed(RaftmqError):
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class ClusterAuthorizationFailed(RaftmqError):
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


class InconsistentClusterId(RaftmqError):
    code = ErrorCode.INCONSISTENT_CLUSTER_ID


class StaleBrokerEpoch(RaftmqError):
    code = ErrorCode.STALE_BROKER_EPOCH


class BrokerIdNotRegistered(RaftmqError):
    code = ErrorCode.BROKER_ID_NOT_REGISTERED


class BrokerNotAvailable(RaftmqError):
    code = ErrorCode.BROKER_NOT_AVAILABLE


class InvalidCommand(RaftmqError):
    code = ErrorCode.INVALID_REQUEST  # Kafka has no metadata commands of clients


class NewerCommand(InvalidCommand):
    """This node must stop: newer nodes apply the command, and a node that skipped it would have
    another image."""

    code = ErrorCode.UNSUPPORTED_VERSION  # of the node: it has to be upgraded


class NotController(RaftmqError):
    """Definite: nothing was appended. `leader_id`: the controller, as far as this node knows."""

    code = ErrorCode.NOT_CONTROLLER
    retriable = True  # at the controller
    refresh_metadata = True  # another node leads

    def __init__(self, what: str, leader_id: int | None = None) -> None:
        self.leader_id = leader_id
        super().__init__(what)


class QuorumBusy(RaftmqError):
    """Definite: the queue of proposals is full; try again after a pause."""

    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED  # Kafka has no number of its own for it
    retriable = True  # until the queue is shorter


class ProposalDiscarded(RaftmqError):
    """Definite: a new leader put another command in its place in the log."""

    code = ErrorCode.NOT_CONTROLLER  # what a client does next is the same
    retriable = True  # with the same command: it was not applied
    refresh_metadata = True  # another node leads the quorum


class ProposalUncertain(RaftmqError):
    """It may have been applied, or may be later: retry with the same command id, or read."""

    code = ErrorCode.REQUEST_TIMED_OUT  # what a client does next is the same
    retriable = True  # a command id is applied once at most
    refresh_metadata = True  # another node may lead the quorum
    definite = False  # it may be in the log of a majority


# -- Requests -------------------------------------------------------------------------------------
# Errors of requests and connections.


class UnsupportedVersion(RaftmqError):
    """`correlation_id`: of the request, so that it can be answered; None: not known."""

    code = ErrorCode.UNSUPPORTED_VERSION

    def __init__(self, what: str, *, correlation_id: int | None = None) -> None:
        self.correlation_id = correlation_id
        super().__init__(what)


class InvalidRequest(RaftmqError):
    code = ErrorCode.INVALID_REQUEST


class RequestTimedOut(RaftmqError):
    """Indefinite: it may have been carried out, or may be later."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True  # by clients that detect duplicates, or can live with them
    refresh_metadata = True  # the broker may be down, and another one lead
    definite = False  # the broker may work on it still


class BufferExhausted(RequestTimedOut):
    """A blocking call has waited for room in the producer's buffer pool until its time was over:
    the record was not accepted."""

    refresh_metadata = False
    definite = True  # never sent


class Disconnected(RaftmqError):
    """Indefinite: the request may have been carried out."""

    code = ErrorCode.NETWORK_EXCEPTION  # Kafka's for any failed connection
    retriable = True  # over a new connection
    refresh_metadata = True  # the broker may be down, and another one lead
    definite = False  # the request may have arrived


class Unreachable(RaftmqError):
    """`was_refused`: the machine answered that nothing listens there; else it may be down."""

    code = ErrorCode.NETWORK_EXCEPTION  # Kafka's for any failed connection
    retriable = True  # nothing was sent

    def __init__(self, what: str, *, was_refused: bool = False) -> None:
        self.was_refused = was_refused
        super().__init__(what)


class RemoteProtocolError(RaftmqError):
    code = ErrorCode.NETWORK_EXCEPTION  # Kafka's for any failed connection
    retriable = True  # over a new connection


class ForeignProtocol(RemoteProtocolError):
    """`protocol`: that of the other side, such as "HTTP"."""

    def __init__(self, what: str, protocol: str = "") -> None:
        self.protocol = protocol
        super().__init__(what)


class ServerError(RaftmqError):
    """An error of a newer version: only its `number` and text are known, so it is indefinite."""

    definite = False  # not known, so nothing is promised

    def __init__(self, what: str, number: int = ErrorCode.UNKNOWN_SERVER_ERROR) -> None:
        self.number = number
        with suppress(ValueError):  # a number that Kafka has added since
            self.code = ErrorCode(number)
        super().__init__(what)


# -- Raised in clients only -----------------------------------------------------------------------
# Errors that are raised in clients, and never sent.


class OutcomeUnknown(RaftmqError):
    """A client gave up, and an attempt may have been carried out. Its last error is the cause."""

    code = ErrorCode.REQUEST_TIMED_OUT  # never sent
    retriable = True  # by the program, which may repeat what was done
    definite = False  # an attempt may have succeeded


class DeliveryTimedOut(RaftmqError):
    """A producer gave up: the batch was never sent, or each attempt was refused. Definite. The
    last reason, if there was one, is the cause."""

    code = ErrorCode.REQUEST_TIMED_OUT  # never sent
    retriable = True  # by the program: nothing of it was appended


class BufferFull(RaftmqError):
    """The producer's buffer pool has no room for another record now: back-pressure. `enqueue` waits
    for room."""

    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED  # never sent
    retriable = True  # once batches were acknowledged


class UndecodableRecord(RaftmqError):
    """A key or value is not what the program reads it as: text, JSON, or what its deserializer
    takes. Reading goes on behind the record. The deserializer's error is the cause.

    Attributes:
        record: the `ConsumerRecord`, with key and value as they were sent.
        offset: its offset.
    """

    code = ErrorCode.INVALID_RECORD  # never sent

    record: Any = None
    offset: int | None = None

    @classmethod
    def of(cls, record: Any, what: str) -> Self:  # noqa: ANN401  # its class imports this module
        """Names the record."""
        error = cls(f"{record.topic}-{record.partition} offset {record.offset}: {what}")
        error.topic, error.partition, error.offset = record.topic, record.partition, record.offset
        error.record = record
        return error


class Closed(RaftmqError):
    """A client, producer or consumer that was closed, or was not opened yet."""

    code = ErrorCode.INVALID_REQUEST  # never sent


# -- Storage --------------------------------------------------------------------------------------
# Errors of the disk.


class StorageError(RaftmqError):
    """A file operation failed. Indefinite: bytes of a failed write may be found after a restart."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True  # at another leader, or after the repair
    refresh_metadata = True  # a leader with a failed disk hands over
    definite = False  # part of a failed write may be on the disk


class DirectoryInUse(StorageError):
    definite = True  # nothing was opened
    retriable = False  # until an operator acts
    refresh_metadata = False  # no broker is involved


class CorruptJournal(StorageError):
    """The node must stay out of the quorum; the message says what is damaged and the way back."""

    definite = True  # the node did not start
    retriable = False  # until an operator acts
    refresh_metadata = False  # no broker is involved


# -- From numbers to classes ----------------------------------------------------------------------


# Of the classes that share a number, the one that a client raises for it: the most general one.
_FIRST = (
    UnsupportedVersion,
    InvalidRequest,
    InvalidRecord,
    NotController,
    QuorumBusy,
    RequestTimedOut,
    Disconnected,
)


AnyError = TypeVar("AnyError", bound=RaftmqError)


def error_for(number: int, message: str) -> RaftmqError:
    """The exception for an error number in an answer.

    It promises no more than the one that the broker raised: of classes that share a number, it is
    indefinite if one of them is.
    """
    assert number != ErrorCode.NONE, "no error"
    cls = _BY_NUMBER.get(number)
    if cls is None:  # a number of a newer broker
        return ServerError(message, number)
    if cls is InvalidConfig:  # takes a list of problems
        return InvalidConfig([message])
    if cls is CorruptRecord:  # its constructor adds the words again
        return CorruptRecord(message.removeprefix("corrupt record: "))
    return cls(message)


def without_frames(error: AnyError) -> AnyError:
    """`error` without tracebacks, to be stored. Their frames refer to logs, whose files would stay
    open, and often to the object that stores the error: a cycle until the garbage collector runs.
    """
    behind: list[BaseException | None] = [error]
    while behind:
        one = behind.pop()
        if one is not None and one.__traceback__ is not None:
            one.__traceback__ = None
            behind += [one.__cause__, one.__context__]
    return error


def _by_number() -> dict[int, type[RaftmqError]]:
    """The class of each number. A class that inherits its number leaves it to its parent."""
    found: dict[int, type[RaftmqError]] = {cls.code: cls for cls in _FIRST}
    for cls in _descendants(RaftmqError):
        if "code" in vars(cls):  # else it inherits the number
            first = found.setdefault(cls.code, cls)
            assert first is cls or first in _FIRST, f"{cls} shares its number with {first}"
    return found


def _descendants(base: type[RaftmqError]) -> list[type[RaftmqError]]:
    children = base.__subclasses__()
    return children + [cls for child in children for cls in _descendants(child)]


def _document() -> None:
    """Classes that need no more words get those of the tree above, for `help` and the reference."""
    said = dict(re.findall(r"── (\w+) +(\S.*)", __doc__ or ""))
    for cls in _descendants(RaftmqError):
        if cls.__doc__ is None and cls.__name__ in said:
            text = said[cls.__name__].removeprefix("... ")
            cls.__doc__ = f"{text[0].upper()}{text[1:]}."


_document()
_BY_NUMBER = _by_number()
