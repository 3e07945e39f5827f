"""Sending with numbers: whatever happens on the way, a record stands in the log once, in order.

A11.3.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.client.producer.batch import BatchMetadata
from raftmq.errors import (
    DeliveryTimedOut,
    Disconnected,
    DuplicateSequence,
    InvalidProducerEpoch,
    MessageTooLarge,
    NotEnoughReplicas,
    OutcomeUnknown,
    OutOfOrderSequence,
    RaftmqError,
    UnknownProducerId,
    UnsupportedVersion,
)
from raftmq.wire.batch.header import read_header
from raftmq.wire.batch.records import RecordBatch
from raftmq.wire.bodies import PRODUCER_EPOCH_MAX
from tests.unit.client.producer.numbered_model import Numbered
from tests.unit.client.producer.sending_model import Model, Waiter

if TYPE_CHECKING:
    from raftmq.client.producer.partition_queue import ProduceRequest

REFUSED_NUMBERS = [OutOfOrderSequence, UnknownProducerId, InvalidProducerEpoch]


@given(
    seed=st.integers(0, 1 << 32),
    trouble=st.sampled_from([0.0, 0.3, 0.8]),
    acks=st.sampled_from([1, "all"]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_once_and_in_order(seed: int, trouble: float, acks: int | str) -> None:
    """Copies come late, answers are lost, leaders lose records: no record is there twice."""
    shuffled = Random(f"{seed}")
    model = Numbered(
        seed,
        acks=acks,
        batch_size=shuffled.choice((1, 20, 100)),
        linger_ms=shuffled.choice((0, 5, 500)),
        max_request_size=shuffled.choice((1, 100, 1000)),
        delivery_timeout_ms=shuffled.choice((2_000, 10_000, 120_000)),
        request_timeout_ms=shuffled.choice((500, 30_000)),
        retries=shuffled.choice((None, 0, 3)),
    )
    model.run(150, trouble)
    assert model.used_bytes == 0
    assert sorted(model.outcomes) == list(range(model.count))
    for log in model.logs:
        assert log == sorted(set(log)), "twice, or out of order"
    everything = {number for log in model.logs for number in log}
    for number, outcome in model.outcomes.items():
        if isinstance(outcome, BatchMetadata):
            assert not outcome.is_repeated
            assert number in everything or number in model.lost
        else:
            assert not (outcome.definite and number in everything), "it did happen"
    assert not (model.lost and acks == "all")
    check_that_it_goes_on(model)


def check_that_it_goes_on(model: Numbered) -> None:
    """Nothing of the past is in the way of what comes now."""
    first, model.leaders = model.count, [1] * len(model.leaders)
    model.now += 10
    for key in range(9):
        model.hand_in(key)
    for _ in range(60):
        model.learn()
        for request in model.step(is_hurried=True).requests:
            model.answer(request, *[model.append(part) for part in request.parts])
        model.now += 0.03
    later = [model.outcomes[number] for number in range(first, model.count)]
    assert all(isinstance(outcome, BatchMetadata) for outcome in later)


def known_model(**options: Any) -> Model:
    model = Model(1, partitions=1, **options)
    model.learn()
    model.topic.waiting.append(Waiter(model.now))
    model.step()
    return model


def send(model: Model, *counts: int) -> ProduceRequest:
    """So many records in each batch; the request that leaves now."""
    for count in counts:
        for _ in range(count):
            model.hand_in(7)
        queue = model.topic.queues[0]
        if queue.open is not None:
            queue.close_batch()
    return again(model)


def again(model: Model) -> ProduceRequest:
    """What leaves next, after a pause if there has to be one."""
    model.now = max(model.now, model.topic.queues[0].not_before)
    model.learn()
    [request] = model.step(is_hurried=True).requests
    return request


def numbers(request: ProduceRequest) -> list[tuple[int, int, int]]:
    """Of each batch: id, epoch, sequence."""
    headers = [read_header(data) for data in request.parts[0].data]
    return [(one.producer_id, one.producer_epoch, one.base_sequence) for one in headers]


def test_numbers_count_records() -> None:
    """One epoch, no holes, over several requests."""
    model = known_model()
    request = send(model, 2, 3)
    assert numbers(request) == [(1, 0, 0), (1, 0, 2)]
    model.answer(request, model.append(request.parts[0]))
    assert numbers(send(model, 1)) == [(1, 0, 5)]


def test_nothing_leaves_before_there_is_an_id() -> None:
    """Records are taken meanwhile; once there is one they leave."""
    model = Model(1, partitions=1)
    model.learn()
    model.topic.waiting.append(Waiter(model.now))
    step = model.sending.step(model.routes, model.now, is_hurried=True)
    assert step.is_id_wanted
    model.hand_in(7)
    step = model.sending.step(model.routes, model.now, is_hurried=True)
    assert (step.requests, step.is_id_wanted) == ([], True)
    assert step.look_at == model.now + 120
    model.give_id()
    assert numbers(model.step(is_hurried=True).requests[0]) == [(1, 0, 0)]


def test_no_id_in_time() -> None:
    """Definite, and it is said what was missing, and why."""
    model = Model(1, partitions=1, delivery_timeout_ms=1000)
    model.learn()
    model.topic.waiting.append(Waiter(model.now))
    model.sending.step(model.routes, model.now, is_hurried=True)
    model.sending.on_no_id(NotEnoughReplicas("nobody leads the quorum"))
    model.hand_in(7)
    step = model.sending.step(model.routes, model.now, is_hurried=True)
    assert step.is_id_wanted
    model.now = step.look_at
    model.sending.step(model.routes, model.now, is_hurried=True)
    outcome = model.outcomes[0]
    assert isinstance(outcome, DeliveryTimedOut)
    assert "no broker has given a producer id: nobody leads the quorum" in str(outcome)


def test_brokers_that_know_no_ids() -> None:
    """Told at once: waiting would not help. What comes later asks again."""
    model = Model(1, partitions=1)
    model.learn()
    model.topic.waiting.append(Waiter(model.now))
    model.sending.step(model.routes, model.now, is_hurried=True)
    model.hand_in(7)
    model.sending.on_no_id(UnsupportedVersion("too old"))
    assert isinstance(model.outcomes[0], UnsupportedVersion)
    model.hand_in(7)
    assert model.step(is_hurried=True).is_id_wanted
    assert numbers(again(model)) == [(1, 0, 0)]


def test_a_refusal_is_sent_again_as_the_same_bytes() -> None:
    """Not appended, and still wanted: nothing about it changes."""
    model = known_model()
    request = send(model, 2, 3)
    before = [bytes(data) for data in request.parts[0].data]
    model.answer(request, NotEnoughReplicas("few"))
    model.hand_in(7)
    second = again(model)
    assert [bytes(data) for data in second.parts[0].data][:2] == before
    assert numbers(second)[2] == (1, 0, 5)


def test_what_is_in_doubt_leaves_alone() -> None:
    """The same bytes; what is new waits for the answer, and follows under the next number."""
    model = known_model()
    request = send(model, 2)
    before = bytes(request.parts[0].data[0])
    model.append(request.parts[0])
    model.answer(request, Disconnected("gone"))
    model.hand_in(7)
    second = again(model)
    assert [bytes(data) for data in second.parts[0].data] == [before]
    model.answer(second, model.append(second.parts[0]))
    assert numbers(again(model)) == [(1, 0, 2)]
    assert model.logs[0] == [0, 1]
    assert model.outcomes[1] == BatchMetadata("t", 0, 0, 2)


def test_duplicates_among_others() -> None:
    """An answer that names each batch's place is taken by its word."""
    model = known_model()
    request = send(model, 2, 3)
    model.logs[0] += range(5)
    model.answer(request, (0, 2))
    assert model.outcomes[2] == BatchMetadata("t", 0, 2, 3)


def test_a_failure_begins_an_epoch() -> None:
    """Refused for good: its number is nobody else's, and what comes next begins at 0."""
    model = known_model()
    request = send(model, 2)
    model.answer(request, MessageTooLarge("too large"))
    assert isinstance(model.outcomes[0], MessageTooLarge)
    assert numbers(send(model, 1)) == [(1, 1, 0)]


def test_those_behind_a_failure_are_renumbered() -> None:
    """The first one's time is over, it was refused; the others follow it in the next epoch."""
    model = known_model(delivery_timeout_ms=5000)
    request = send(model, 2)
    model.answer(request, NotEnoughReplicas("few"))
    model.now += 4
    model.learn()
    request = send(model, 3)
    assert numbers(request) == [(1, 0, 0), (1, 0, 2)]
    model.now += 1.5
    model.answer(request, NotEnoughReplicas("few"))
    assert isinstance(model.outcomes[0], DeliveryTimedOut)
    second = again(model)
    assert numbers(second) == [(1, 1, 0)]
    values = RecordBatch.decode(second.parts[0].data[0]).values
    assert [*values] == [b"00000002", b"00000003", b"00000004"]


def test_given_up_in_the_queue() -> None:
    """Refused, and late before it could leave again: its number is not used again either."""
    model = known_model(delivery_timeout_ms=5000)
    model.answer(send(model, 2), NotEnoughReplicas("few"))
    model.leaders = [-1]
    model.learn()
    model.now += 5
    model.step()
    assert isinstance(model.outcomes[0], DeliveryTimedOut)
    model.leaders = [1]
    assert numbers(send(model, 1)) == [(1, 1, 0)]


def test_an_unknown_outcome_begins_an_epoch() -> None:
    """It may arrive yet: by the next epoch brokers tell it from what was sent later."""
    model = known_model(retries=0)
    request = send(model, 2)
    model.answer(request, Disconnected("gone"))
    assert isinstance(model.outcomes[0], OutcomeUnknown)
    second = send(model, 1)
    assert numbers(second) == [(1, 1, 0)]
    model.answer(second, model.append(second.parts[0]))
    assert isinstance(model.append(request.parts[0]), InvalidProducerEpoch)


def test_given_up_while_another_is_in_doubt() -> None:
    """What may have been appended beside it keeps its number; then comes the next epoch."""
    model = known_model(delivery_timeout_ms=5000)
    for _ in range(2):
        model.hand_in(7)
        model.topic.queues[0].close_batch()
        model.now += 1
    request = send(model)
    assert numbers(request) == [(1, 0, 0), (1, 0, 1)]
    model.append(request.parts[0])
    model.now += 3.5
    model.answer(request, Disconnected("gone"))
    assert isinstance(model.outcomes[0], OutcomeUnknown)
    model.hand_in(7)
    second = again(model)
    assert numbers(second) == [(1, 0, 1)]
    model.answer(second, model.append(second.parts[0]))
    assert model.outcomes[1] == BatchMetadata("t", 0, 1, 1)
    [third] = model.step(is_hurried=True).requests
    assert numbers(third) == [(1, 1, 0)]


def test_late_on_its_way_and_then_there() -> None:
    """Told as unknown; then the answer says where it is, so that the epoch goes on."""
    model = known_model(delivery_timeout_ms=1000)
    request = send(model, 2)
    model.now += 1
    model.step()
    assert isinstance(model.outcomes[0], OutcomeUnknown)
    model.answer(request, model.append(request.parts[0]))
    assert numbers(send(model, 1)) == [(1, 0, 2)]


def test_late_on_its_way_and_then_lost() -> None:
    """Nobody knows: the next epoch begins, once nothing is on its way."""
    model = known_model(delivery_timeout_ms=1000)
    request = send(model, 2)
    model.now += 1
    model.hand_in(7)
    assert model.step(is_hurried=True).requests == []
    model.answer(request, Disconnected("gone"))
    assert numbers(again(model)) == [(1, 1, 0)]


@pytest.mark.parametrize("refusal", REFUSED_NUMBERS)
def test_a_refused_number_that_nobody_has_seen(refusal: type[RaftmqError]) -> None:
    """The broker has lost what was before: nothing was appended, so the next epoch takes it."""
    model = known_model(retries=0)
    request = send(model, 2)
    model.answer(request, model.append(request.parts[0]))
    request = send(model, 1, 3)
    model.answer(request, refusal("not that one"))
    second = again(model)
    assert numbers(second) == [(1, 1, 0), (1, 1, 1)]
    model.answer(second, model.append(second.parts[0]))
    assert model.outcomes[2] == BatchMetadata("t", 0, 2, 1)


@pytest.mark.parametrize("refusal", [*REFUSED_NUMBERS, DuplicateSequence])
def test_a_refused_number_that_may_be_there(refusal: type[RaftmqError]) -> None:
    """Under another number it might be there twice: nobody knows, and the next epoch begins."""
    model = known_model()
    request = send(model, 2)
    model.answer(request, Disconnected("gone"))
    model.answer(again(model), refusal("not that one"))
    assert isinstance(model.outcomes[0], OutcomeUnknown)
    assert numbers(send(model, 1)) == [(1, 1, 0)]


def test_a_number_is_refused_until_the_time_is_over() -> None:
    """It ends, with what was said of it."""
    model = known_model(delivery_timeout_ms=5000)
    request = send(model, 1)
    epochs = []
    while not model.outcomes:
        epochs.append(numbers(request)[0][1])
        model.answer(request, InvalidProducerEpoch("another epoch"))
        model.now += 2
        model.learn()
        step = model.step(is_hurried=True)
        request = step.requests[0] if step.requests else request
    assert epochs == list(range(len(epochs)))
    outcome = model.outcomes[0]
    assert isinstance(outcome, DeliveryTimedOut)
    assert str(outcome).endswith("another epoch")


def test_epochs_that_are_used_up() -> None:
    """Another id, and epoch 0 of it; what is in doubt keeps the old one until it is settled."""
    model = known_model(retries=1)
    numbering = model.topic.queue(0).numbering
    assert numbering is not None
    request = send(model, 1)
    model.answer(request, MessageTooLarge("too large"))
    numbering._epoch = PRODUCER_EPOCH_MAX - 1
    request = send(model, 1)
    assert numbers(request) == [(1, PRODUCER_EPOCH_MAX, 0)]
    model.answer(request, MessageTooLarge("too large"))
    model.now += 2
    model.learn()
    model.hand_in(7)
    step = model.step(is_hurried=True)
    assert (step.requests, step.is_id_wanted) == ([], True)
    assert numbers(model.step(is_hurried=True).requests[0]) == [(2, 0, 0)]


def test_without_idempotence_nothing_is_numbered() -> None:
    """No id is asked for, and the header says so."""
    model = known_model(idempotence=False)
    assert numbers(send(model, 1)) == [(-1, -1, -1)]
    assert model.producer_id == 0
