"""A broker refuses records together; only those that broke its limit may fail.

S2 to S4 hold meanwhile: nothing is there twice, the order stays, and what fails certainly is not
there.
"""

from __future__ import annotations

import math
from itertools import chain, repeat
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftmq.client.producer.batch import BatchMetadata, ProducerBatch
from raftmq.client.producer.partition_queue import LIMIT_SECONDS
from raftmq.client.producer.record import Extras
from raftmq.errors import (
    Disconnected,
    InvalidTimestamp,
    MessageTooLarge,
    OutcomeUnknown,
    RaftmqError,
)
from raftmq.model import Compression
from raftmq.wire.batch.header import read_header
from raftmq.wire.batch.records import RecordBatch
from tests.unit.client.producer.numbered_model import Numbered
from tests.unit.client.producer.sending_model import Model
from tests.unit.client.producer.test_numbered_sending import (
    again,
    check_that_it_goes_on,
    known_model,
    numbers,
    send,
)

if TYPE_CHECKING:
    from raftmq.client.producer.partition_queue import ProduceRequest


@given(
    seed=st.integers(0, 1 << 32),
    trouble=st.sampled_from([0.0, 0.0, 0.3, 0.8]),
    acks=st.sampled_from([1, "all"]),
    numbered=st.booleans(),
    is_timed=st.booleans(),
)
@settings(max_examples=80, deadline=None, derandomize=True)
def test_only_the_guilty_fail(
    seed: int, trouble: float, acks: int | str, numbered: bool, is_timed: bool
) -> None:
    """Whatever else happens on the way."""
    kind = Numbered if numbered else Model
    model = kind(seed, acks=acks, batch_size=400, linger_ms=5, idempotence=numbered)
    model.bytes_max, model.timestamp_max = 260, int(is_timed)
    model.run(120, trouble)
    assert sorted(model.outcomes) == list(range(model.count))
    assert model.used_bytes == 0
    assert model.step().look_at == math.inf
    assert not model.topic.busy
    there = {number for log in model.logs for number in log}
    assert not there & model.guilty
    for log in model.logs:
        firsts = list(dict.fromkeys(log))
        assert firsts == sorted(firsts), "out of order"
        assert len(firsts) == len(log) or not numbered, "twice"
    for number, outcome in model.outcomes.items():
        if isinstance(outcome, RaftmqError):
            assert number in model.guilty or trouble, f"{number} is innocent: {outcome}"
            assert not (outcome.definite and number in there), "it did happen"
    if isinstance(model, Numbered):
        model.bytes_max, model.timestamp_max = math.inf, 0
        check_that_it_goes_on(model)


def draw(model: Model, *numbers: float) -> None:
    """What chance says next; 0.0 makes a record guilty, first of its size, then of its time."""
    model.random.random = chain(numbers, repeat(0.5)).__next__  # type: ignore[method-assign]


def refused(model: Model, request: ProduceRequest) -> None:
    model.answer(request, *[model.append(part) for part in request.parts])


def test_a_batch_over_the_limit_leaves_in_pieces() -> None:
    """Under the numbers that it had, in order, and the next ones are cut before they leave."""
    model = known_model(batch_size=1000)
    model.bytes_max = 200
    draw(model)
    refused(model, send(model, 20))
    assert not model.outcomes
    request = again(model)
    assert all(len(data) <= 200 for data in request.parts[0].data)
    found = numbers(request)
    assert found[0][2] == 0
    assert {(producer_id, epoch) for producer_id, epoch, _ in found} == {(1, 0)}
    refused(model, request)
    assert model.logs[0] == list(range(20))
    following = send(model, 20)
    assert all(len(data) <= 200 for data in following.parts[0].data)
    refused(model, following)
    assert model.logs[0] == list(range(40))
    assert all(isinstance(outcome, BatchMetadata) for outcome in model.outcomes.values())


def limited_model(bytes_max: int) -> Model:
    """It has been told of the limit, and goes by it."""
    model = known_model(batch_size=1000)
    model.bytes_max = bytes_max
    draw(model)
    refused(model, send(model, 20))
    refused(model, again(model))
    check_pieces(model)
    return model


def check_pieces(model: Model) -> None:
    """What comes next is cut before it leaves."""
    request = send(model, 20)
    assert len(numbers(request)) > 1
    refused(model, request)


def test_a_limit_is_forgotten_in_time() -> None:
    """It was raised meanwhile: batches leave whole again."""
    model = limited_model(200)
    model.bytes_max = 10_000
    model.now += LIMIT_SECONDS - 1
    check_pieces(model)
    model.now += 1
    assert len(numbers(send(model, 20))) == 1


def test_a_limit_is_that_of_one_topic() -> None:
    """It was deleted and made anew under the same name."""
    model = limited_model(200)
    model.topic_id = b"u" * 16
    assert len(numbers(send(model, 20))) == 1


@pytest.mark.parametrize("bytes_max", [200, 10_000])
def test_requests_keep_to_their_size(bytes_max: int) -> None:
    """However much the headers of small batches add, or of pieces; the rest follows in order."""
    model = known_model(batch_size=1 if bytes_max > 200 else 1000, max_request_size=1000)
    model.bytes_max = bytes_max
    draw(model)
    if bytes_max == 200:
        refused(model, send(model, 20))
    for _ in range(100):
        model.hand_in(7)
    while len(model.outcomes) < model.count:
        request = again(model)
        assert sum(map(len, request.parts[0].data)) <= 1000 * 9 / 8
        refused(model, request)
    assert model.logs[0] == list(range(model.count))
    assert {epoch for _, epoch, _ in numbers(request)} == {0}


def test_a_record_over_the_limit_fails_alone() -> None:
    """It is certain that it is not there; the rest goes on under another epoch."""
    model = known_model(batch_size=10_000)
    model.bytes_max = 200
    draw(model, 0.5, 0.5, 0.5, 0.0)
    request = send(model, 8)
    assert model.guilty == {3}
    for _ in range(3):
        refused(model, request)
        if len(model.outcomes) == 8:
            break
        request = again(model)
    assert isinstance(model.outcomes.pop(3), MessageTooLarge)
    assert all(isinstance(outcome, BatchMetadata) for outcome in model.outcomes.values())
    assert model.logs[0] == [0, 1, 2, 4, 5, 6, 7]


def test_records_ahead_of_time_fail_alone() -> None:
    """All of them at once, however many there are."""
    model = known_model(batch_size=10_000)
    model.timestamp_max = 1
    draw(model, 0.5, 0.0, 0.0, 0.5, 0.0)
    refused(model, send(model, 6))
    assert {number for number, found in model.outcomes.items()} == model.guilty == {1, 2, 4}
    assert all(isinstance(outcome, InvalidTimestamp) for outcome in model.outcomes.values())
    refused(model, again(model))
    assert model.logs[0] == [0, 3, 5]


def test_of_whom_was_told_in_time_nobody_else_is_blamed() -> None:
    """A record ahead of its time is too late when the refusal comes, that behind it is not."""
    model = known_model(delivery_timeout_ms=5000, request_timeout_ms=5000)
    model.timestamp_max = 1
    draw(model, 0.0)
    model.hand_in(7)
    model.topic.queues[0].close_batch()
    model.now += 1
    request = send(model, 1)
    assert model.guilty == {0}
    model.now += 4
    model.step()
    assert sorted(model.outcomes) == [0]
    refused(model, request)
    assert sorted(model.outcomes) == [0]
    refused(model, again(model))
    assert model.logs[0] == [1]


def test_what_may_be_there_is_not_split() -> None:
    """Its bytes and its number stay; nobody can say that it is not there."""
    model = known_model(batch_size=10_000)
    request = send(model, 8)
    model.answer(request, Disconnected("lost"))
    model.bytes_max = 100
    refused(model, again(model))
    assert all(isinstance(outcome, OutcomeUnknown) for outcome in model.outcomes.values())
    assert len(model.outcomes) == 8


@pytest.mark.parametrize("error", [MessageTooLarge("?"), InvalidTimestamp("?")])
def test_a_refusal_without_a_limit_is_about_all(error: RaftmqError) -> None:
    """As brokers that say no more have it."""
    model = known_model()
    model.answer(send(model, 3), error)
    assert all(isinstance(outcome, type(error)) for outcome in model.outcomes.values())
    assert len(model.outcomes) == 3


def test_a_limit_that_nobody_has_broken_ends_it() -> None:
    """A broker that contradicts itself is not asked for ever."""
    model = known_model()
    error = MessageTooLarge("?")
    error.allowed = 1 << 20
    model.answer(send(model, 3), error)
    assert len(model.outcomes) == 3


def test_headers_tags_and_keys_survive() -> None:
    """What was encoded is decoded again for the pieces."""
    batch = ProducerBatch("t", 0, 0.0)
    for index in range(6):
        batch.add(b"%d" % index, index if index % 2 else None, 1000 + index, 100)
        if index > 2:
            batch.add_extras(Extras(headers={"h": b"%d" % index}, tags=["x"]))
    whole = RecordBatch.decode(batch.encode(Compression.NONE))
    expected = list(whole.records())
    [tail] = batch.split([4])
    pieces = [RecordBatch.decode(each.encode(Compression.NONE)) for each in (batch, tail)]
    found = [record for piece in pieces for record in piece.records()]
    assert [record[1:] for record in found] == [record[1:] for record in expected]
    assert [read_header(each.encode(Compression.NONE)).record_count for each in (batch, tail)] == [
        4, 2,
    ]  # fmt: skip
    assert batch.byte_count + tail.byte_count == 600
