"""Dispatches a command to its rule, and answers a retry by its command id (deduplication).

Owns the table of rules and the stored results of recent command ids. A refused command changes only
the version and those stored results. Nothing here, nor in any rule, may depend on the order of a
Map whose keys contain strings or bytes: it differs from process to process (decision 0010).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from immutables import Map

from raftmq.errors import ErrorCode, InvalidCommand, NewerCommand
from raftmq.metadata import commands as c
from raftmq.metadata.apply import (
    brokers,
    features,
    groups,
    moves,
    partitions,
    producers,
    reviews,
    shared_transactions,
    topics,
    transactions,
)
from raftmq.metadata.apply.brokers import sender_refusal
from raftmq.metadata.apply.draft import Draft
from raftmq.metadata.image import RECENT_COMMANDS_MAX, OriginState

if TYPE_CHECKING:
    from collections.abc import Callable

    from raftmq.metadata.image import MetadataImage

# Of a refusal. It may quote names from the command, and is stored for retries and in snapshots.
MESSAGE_CHARS_MAX = 500

RULES: dict[type[c.Command], Callable[[Draft, Any], c.AnyResult]] = {
    c.RegisterBroker: brokers.register_broker,
    c.FenceBroker: brokers.fence_broker,
    c.UnfenceBroker: brokers.unfence_broker,
    c.BeginControlledShutdown: brokers.begin_controlled_shutdown,
    c.UnregisterBroker: brokers.unregister_broker,
    c.ReviewPartitions: reviews.review_partitions,
    c.FinishReview: reviews.finish_review,
    c.CreateTopic: topics.create_topic,
    c.DeleteTopic: topics.delete_topic,
    c.AddPartitions: topics.create_partitions,
    c.AlterTopicConfig: topics.alter_topic_config,
    c.AlterPartition: partitions.alter_partition,
    c.ReassignPartition: partitions.reassign_partition,
    c.ElectLeader: partitions.elect_leader,
    c.AllocateProducerIds: producers.allocate_producer_ids,
    c.AssignSlot: groups.assign_slot,
    c.SaveGroup: groups.save_group,
    c.CommitOffsets: groups.commit_offsets,
    c.DeleteGroup: groups.delete_group,
    c.DeleteOffsets: groups.delete_offsets,
    c.SetFeatureLevel: features.set_feature_level,
    c.ReportDamage: reviews.report_damage,
    c.RaiseLogStart: partitions.raise_log_start,
    c.OpenTransaction: transactions.open_transaction,
    c.EndTransactions: transactions.end_transactions,
    c.ForgetSettled: transactions.forget_settled,
    c.DeleteTransactions: transactions.delete_transactions,
    c.JoinTransactions: shared_transactions.join_transactions,
    c.PlanMove: moves.plan_move,
    c.CancelMove: moves.cancel_move,
}
_WITHOUT_RULE = {kind.__name__ for kind in {*get_args(c.AnyCommand)} ^ {*RULES}}
assert not _WITHOUT_RULE, (
    f"give these a rule in RULES and a place in AnyCommand: {sorted(_WITHOUT_RULE)}"
)


def apply_bytes(image: MetadataImage, index: int, data: bytes) -> tuple[MetadataImage, c.AnyResult]:
    """`apply` for the entry of the log at `index`; bytes that are no command are refused.

    Raises:
        NewerCommand: other nodes may understand the entry, so this one must not skip it.
    """
    try:
        envelope = c.decode_command(data)
    except NewerCommand:  # a subclass of InvalidCommand, which below becomes a refusal
        raise
    except InvalidCommand as error:  # no raftmq wrote this: refused by every node alike
        return _unchanged(image, index), _refused(ErrorCode.INVALID_REQUEST, str(error))
    return apply(image, index, envelope)


def apply(
    image: MetadataImage, version: int, envelope: c.Envelope
) -> tuple[MetadataImage, c.AnyResult]:
    """The image after the command, and its answer. `version` is the command's Raft index."""
    assert version > image.version, f"{version} was applied already, the image is {image.version}"
    command_id = envelope.command_id
    if command_id is None:  # of the controller: its commands are idempotent by their epochs
        return _follow_rule(image, version, envelope.command)
    answer = _answer_without_rule(image, command_id)
    if answer is not None:  # a retry, or an id that is not valid any more
        return _unchanged(image, version), answer
    image, result = _follow_rule(image, version, envelope.command)
    return _remember(image, command_id, result), result


def _follow_rule(
    image: MetadataImage, version: int, command: c.AnyCommand
) -> tuple[MetadataImage, c.AnyResult]:
    draft = Draft(image, version)
    result = RULES[type(command)](draft, command)
    if isinstance(result, c.Refused):  # drop the draft: a refused command changes nothing
        return _unchanged(image, version), _refused(result.code, result.message)
    return draft.finish(), result


def _unchanged(image: MetadataImage, version: int) -> MetadataImage:
    return image._replace(version=version, changes=())


def _refused(code: ErrorCode, message: str) -> c.Refused:
    if len(message) > MESSAGE_CHARS_MAX:  # it is stored for retries
        message = message[:MESSAGE_CHARS_MAX] + " ..."
    return c.Refused(code, message)


# Results of earlier commands


def _answer_without_rule(image: MetadataImage, command_id: c.CommandId) -> c.AnyResult | None:
    """The answer to a retry, or to an id that is not valid (any more); None: the id is new."""
    origin, epoch, sequence = command_id.origin, command_id.epoch, command_id.sequence
    broker = image.brokers.get(origin)
    refusal = sender_refusal(broker, broker_id=origin, broker_epoch=epoch)
    if refusal is not None:
        return refusal
    if sequence < 0:
        return _refused(ErrorCode.INVALID_REQUEST, f"command {sequence}: they count up from 0")
    memory = _memory_of(image, command_id)
    # Within the window every applied command has its result; without one, the command is new, even
    # if later ones of this broker came first.
    if sequence > memory.highest - RECENT_COMMANDS_MAX:
        return memory.results.get(sequence)
    message = (
        f"command {sequence} of broker {origin} is too old to tell whether it was applied: of"
        f" {RECENT_COMMANDS_MAX} up to {memory.highest} it is known"
    )
    return _refused(ErrorCode.INVALID_REQUEST, message)


def _remember(image: MetadataImage, command_id: c.CommandId, result: c.AnyResult) -> MetadataImage:
    origin, sequence = command_id.origin, command_id.sequence
    broker = image.brokers.get(origin)
    # The command itself has replaced or removed its sender.
    if broker is None or broker.broker_epoch != command_id.epoch:
        return image  # the command itself replaced or removed its sender
    memory = _memory_of(image, command_id)
    highest = max(memory.highest, sequence)
    results = _without_old(memory, highest).set(sequence, result)
    origins = image.origins.set(origin, OriginState(command_id.epoch, highest, results))
    return image._replace(origins=origins)


def _memory_of(image: MetadataImage, command_id: c.CommandId) -> OriginState:
    memory = image.origins.get(command_id.origin)
    if memory is None or memory.epoch != command_id.epoch:  # the first command of this process
        return OriginState(command_id.epoch, -1, Map())
    return memory


def _without_old(memory: OriginState, highest: int) -> Map[int, c.AnyResult]:
    """The results that stay once `highest` is stored; costs O(rise), at most the whole window."""
    if highest - memory.highest >= RECENT_COMMANDS_MAX:  # all are below the window now
        return Map()
    results = memory.results
    first = memory.highest - RECENT_COMMANDS_MAX + 1
    for sequence in range(first, first + highest - memory.highest):
        if sequence in results:  # not every sequence has one: commands may be lost before the log
            results = results.delete(sequence)
    return results
