"""Sending: whatever brokers answer, the outcome that is told of a record is true."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from raftmq.client.producer.record import RECORD_OVERHEAD_BYTES
from raftmq.client.producer.sender import MISSING_SECONDS
from raftmq.errors import (
    Closed,
    DeliveryTimedOut,
    Disconnected,
    ErrorCode,
    LeaderElsewhere,
    LeaderNotAvailable,
    MessageTooLarge,
    NotEnoughReplicas,
    OutcomeUnknown,
    RaftmqError,
    RequestTimedOut,
    TopicAuthorizationFailed,
    UnknownTopicId,
    UnknownTopicOrPartition,
    Unreachable,
)
from tests.unit.client.producer.sending_model import Model, Waiter

if TYPE_CHECKING:
    from raftmq.client.producer.batch import Outcome


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("trouble", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("seed", range(12))
def test_what_is_told_is_true(seed: int, trouble: float, acks: int | str) -> None:
    """Each record is told of once; nothing is held back in the end; the log has the order."""
    shuffled = Random(f"{seed}/{trouble}/{acks}")
    model = Model(
        seed,
        acks=acks,
        idempotence=False,
        batch_size=shuffled.choice((1, 20, 100)),
        linger_ms=shuffled.choice((0, 5, 500)),
        max_request_size=shuffled.choice((1, 100, 1000)),
        delivery_timeout_ms=shuffled.choice((2_000, 10_000, 120_000)),
        request_timeout_ms=shuffled.choice((500, 30_000)),
        retries=None if acks == 0 else shuffled.choice((None, 0, 3)),
    )
    model.run(150, trouble)
    assert model.used_bytes == 0
    assert model.count > 100
    assert sorted(model.outcomes) == list(range(model.count))
    assert model.step().look_at == math.inf
    assert not model.topic.busy
    check_logs(model, acks)


def check_logs(model: Model, acks: int | str) -> None:
    for log in model.logs:
        firsts = list(dict.fromkeys(log))
        assert firsts == sorted(firsts), "out of order"
        twice = {number for number in firsts if log.count(number) > 1}
        assert twice <= model.is_repeated
        assert not (twice and acks == 0)
    everything = {number for log in model.logs for number in log}
    for number, outcome in model.outcomes.items():
        if isinstance(outcome, RaftmqError):
            assert not (outcome.definite and number in everything), "it did happen"
            assert outcome.topic == "t"
        else:
            assert number in everything
            assert outcome.is_repeated == (number in model.is_repeated)


@pytest.mark.parametrize("seed", range(8))
def test_several_requests_in_flight(seed: int) -> None:
    """Then the order may change, and nothing else."""
    model = Model(
        seed, max_in_flight=3, idempotence=False, batch_size=20, delivery_timeout_ms=10_000
    )
    model.run(150, 0.4)
    assert model.used_bytes == 0
    assert sorted(model.outcomes) == list(range(model.count))
    everything = {number for log in model.logs for number in log}
    for number, outcome in model.outcomes.items():
        assert not (isinstance(outcome, RaftmqError) and outcome.definite and number in everything)


def known_model(**options: Any) -> Model:
    model = Model(1, **options)
    model.learn()
    model.topic.waiting.append(Waiter(model.now))
    model.step()
    assert model.topic.count == 3
    return model


def told(model: Model) -> Outcome:
    [outcome] = model.outcomes.values()
    return outcome


def test_a_late_one_on_its_way() -> None:
    """Nobody has answered in time: it is told that nobody knows, and the answer changes nothing."""
    model = known_model(delivery_timeout_ms=1000, request_timeout_ms=30_000)
    model.hand_in(7)
    [request] = model.step(is_hurried=True).requests
    model.hand_in(7)
    model.now += 0.5
    assert model.step(is_hurried=True).look_at == pytest.approx(model.now + 0.5)
    model.now += 0.5
    model.step()
    assert {type(outcome) for outcome in model.outcomes.values()} == {
        OutcomeUnknown,
        DeliveryTimedOut,
    }
    model.answer(request, model.append(request.parts[0]))
    assert model.used_bytes == 0
    assert isinstance(model.outcomes[0], OutcomeUnknown)


def test_never_sent_is_definite() -> None:
    """Nobody leads until the time is over: it certainly is nowhere, and the error says why."""
    model = known_model(delivery_timeout_ms=1000)
    model.leaders = [-1] * 3
    model.learn()
    model.hand_in(7)
    while not model.outcomes:
        step = model.step(is_hurried=True)
        assert not step.requests
        assert step.look_at > model.now
        model.now = step.look_at
        model.learn()
    outcome = told(model)
    assert isinstance(outcome, DeliveryTimedOut)
    assert outcome.definite
    assert str(outcome).endswith("not delivered within 1 s: no leader")


@pytest.mark.parametrize("first", [Disconnected, NotEnoughReplicas])
def test_what_a_refusal_means_after_a_doubt(first: type[RaftmqError]) -> None:
    """A definite error tells only of its own attempt: the one before may have succeeded."""
    model = known_model()
    model.hand_in(7)
    [request] = model.step(is_hurried=True).requests
    model.answer(request, first("first"))
    model.now += 1
    model.learn()
    [request] = model.step(is_hurried=True).requests
    model.answer(request, MessageTooLarge("second"))
    expected = OutcomeUnknown if first is Disconnected else MessageTooLarge
    assert type(told(model)) is expected


@pytest.mark.parametrize(("retries", "sent"), [(0, 1), (1, 2), (3, 4)])
def test_retries_are_counted(retries: int, sent: int) -> None:
    """So often it is sent again, and no more; then the last error is told (A4.8)."""
    model = known_model(retries=retries)
    model.hand_in(7)
    for _ in range(sent):
        [request] = model.step(is_hurried=True).requests
        model.answer(request, NotEnoughReplicas("few"))
        model.now += 2
        model.learn()
    assert isinstance(told(model), NotEnoughReplicas)


def test_a_new_leader_is_asked_at_once() -> None:
    """Where an answer says who leads, there is no pause."""
    model = known_model()
    model.hand_in(7)
    [request] = model.step(is_hurried=True).requests
    partition = request.parts[0].place.partition
    model.leaders[partition] = 1 + request.leader % 3
    model.learn()
    model.answer(request, LeaderElsewhere("not here"))
    [again] = model.step(is_hurried=True).requests
    assert again.leader == model.leaders[partition]


def test_a_topic_that_nobody_knows() -> None:
    """It is asked for again and again; after 5 s, and not before, whoever waits is told."""
    model = Model(1)
    model.error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    waiter = Waiter(model.now)
    model.topic.waiting.append(waiter)
    begin = model.now
    while not waiter.told:
        model.now += 0.1
        step = model.step()
        if not waiter.told:
            assert step.unknown_topics == ["t"]
            model.learn()
    assert isinstance(waiter.told[0], UnknownTopicOrPartition)
    assert "there is no topic 't': make it first" in str(waiter.told[0])
    assert MISSING_SECONDS <= model.now - begin < MISSING_SECONDS + 0.5
    # Made long after that: what was told before is no answer to whoever comes now.
    model.now += 100
    model.step()
    later = Waiter(model.now)
    model.topic.waiting.append(later)
    assert model.step().unknown_topics == ["t"]
    assert not later.told
    model.error = ErrorCode.NONE
    model.learn()
    model.step()
    assert later.told == [None]


def test_a_topic_that_is_forbidden() -> None:
    """Told at once; and asked for again when somebody else wants it, as that may change."""
    model = Model(1)
    model.error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    model.learn()
    waiter = Waiter(model.now)
    model.topic.waiting.append(waiter)
    model.step()
    assert isinstance(waiter.told[0], TopicAuthorizationFailed)
    later = Waiter(model.now)
    model.topic.waiting.append(later)
    assert model.step().unknown_topics == ["t"]
    model.error = ErrorCode.NONE
    model.learn()
    model.step()
    assert later.told == [None]


def test_whoever_waits_in_vain() -> None:
    """Nobody tells the partitions: the time for delivery counts, to the moment."""
    model = Model(1, delivery_timeout_ms=3000)
    waiter = Waiter(model.now)
    model.topic.waiting.append(waiter)
    step = model.step()
    assert step.look_at == model.now + 3
    model.now = step.look_at
    assert model.step().look_at == math.inf
    assert isinstance(waiter.told[0], DeliveryTimedOut)


def test_routes_that_forget() -> None:
    """Of many topics some are forgotten: it is asked for again, and records wait meanwhile."""
    model = known_model()
    model.routes._forget("t")
    model.hand_in(7)
    assert model.step(is_hurried=True).unknown_topics == ["t"]
    model.learn()
    assert len(model.step(is_hurried=True).requests) == 1


def test_a_topic_made_anew_with_fewer_partitions() -> None:
    """What waits for a partition that is gone fails as soon as metadata say so, and certainly was
    not appended; the rest goes on.
    """
    model = known_model()
    for key in range(20):
        model.hand_in(key)
    model.leaders, model.topic_id = [1], b"u" * 16
    model.learn()
    [request] = model.step(is_hurried=True).requests
    failed = [each for each in model.outcomes.values() if isinstance(each, RaftmqError)]
    assert 0 < len(failed) < 20
    assert all(isinstance(each, UnknownTopicOrPartition) and each.definite for each in failed)
    assert all("deleted and made anew" in str(each) for each in failed)
    model.answer(request, *[model.append(part) for part in request.parts])
    assert len(model.outcomes) == 20
    assert model.topic.count == 1


def test_a_topic_made_anew_while_records_are_in_flight() -> None:
    """The old leader refuses a partition that is gone: definite. One that it may have appended
    before it went away: unknown.
    """
    for refusal, is_definite in ((UnknownTopicId("gone"), True), (Disconnected("gone"), False)):
        model = known_model()
        model.hand_in(2)
        [request] = model.step(is_hurried=True).requests
        [part] = request.parts
        model.leaders, model.topic_id = [1, 2, 3][: part.place.partition], b"u" * 16
        model.answer(request, refusal)
        model.learn()
        model.step(is_hurried=True)
        outcome = told(model)
        assert isinstance(outcome, RaftmqError)
        assert outcome.definite == is_definite


def test_a_broker_that_lags_knows_fewer_partitions() -> None:
    """The topic has grown, its metadata were forgotten, and a broker tells what was before: what
    was placed in the new partitions waits for newer metadata.
    """
    model = known_model()
    old, model.leaders = model.version - 1, [1, 2, 3, 1]
    model.logs, model.headers = [*model.logs, []], [*model.headers, []]
    model.learn()
    model.topic.waiting.append(Waiter(model.now))
    model.step()
    for key in range(20):
        model.hand_in(key)
    model.routes._forget("t")
    model.version, model.leaders = old, [1, 2, 3]
    model.learn()
    for request in model.step(is_hurried=True).requests:
        model.answer(request, *[model.append(part) for part in request.parts])
    assert 0 < len(model.outcomes) < 20
    model.version, model.leaders, model.now = old + 2, [1, 2, 3, 1], model.now + 1
    model.learn()
    for request in model.step(is_hurried=True).requests:
        model.answer(request, *[model.append(part) for part in request.parts])
    assert len(model.outcomes) == 20
    assert not any(isinstance(each, RaftmqError) for each in model.outcomes.values())


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("problem", ["refused", "silent", "no leader", "no metadata", "both"])
def test_why_it_was_not_delivered(problem: str, *, is_first: bool) -> None:
    """A record is not delivered in time: the error names the last reason and has it as its cause,
    also of a record that was never sent, as it stood behind another.
    """
    model = known_model(delivery_timeout_ms=3000, batch_size=8)
    if problem == "no leader":
        model.leaders = [-1] * 3
        model.learn()
    for _ in range(1 if is_first else 2):
        model.hand_in(7)
    if problem == "both":  # the leader has refused it once, and then no broker answered any more
        for request in model.step(is_hurried=True).requests:
            model.answer(request, *[NotEnoughReplicas("one of two")] * len(request.parts))
    if problem in ("no metadata", "both"):
        model.routes._forget("t")
        model.topic.problem = Unreachable("the cable is cut")
    for _ in range(4):
        for request in model.step(is_hurried=True).requests:
            if problem == "refused":
                model.answer(request, *[NotEnoughReplicas("one of two")] * len(request.parts))
        model.now += 1
    model.step()
    outcome = model.outcomes[model.count - 1]
    assert isinstance(outcome, RaftmqError)
    late = outcome.__cause__ if isinstance(outcome, OutcomeUnknown) else outcome
    assert isinstance(late, DeliveryTimedOut)
    assert late.__cause__ is not None
    expected = {
        "refused": NotEnoughReplicas,
        "silent": RequestTimedOut,
        "no leader": LeaderNotAvailable,
        "no metadata": Unreachable,
        "both": Unreachable,
    }
    assert type(late.__cause__) is expected[problem]
    assert str(late.__cause__) in str(late)


def test_failing_all() -> None:
    """A producer that is closed: nothing was sent, so nothing happened."""
    model = known_model()
    model.hand_in(7)
    model.sending.fail_all(Closed("closed"))
    assert isinstance(told(model), Closed)
    assert model.used_bytes == 0


def test_idle_partitions_cost_nothing() -> None:
    """A step looks at queues that hold something, however many were used before."""
    model = known_model()
    for key in range(50):
        model.hand_in(key)
    for request in model.step(is_hurried=True).requests:
        model.answer(request, *[model.append(part) for part in request.parts])
    assert model.step().look_at == math.inf
    assert not model.topic.busy
    assert len(model.topic.queues) == 3


def test_many_partitions_in_one_request() -> None:
    """No message names more partitions than brokers take."""
    model = Model(1, partitions=12_000, max_request_size=32 << 20)
    model.leaders = [1] * 12_000
    model.learn()
    model.topic.count = 12_000
    model.give_id()
    for partition in range(12_000):
        batch = model.topic.queue(partition).open_batch(model.now)
        batch.add(b"", None, 0, RECORD_OVERHEAD_BYTES)
    requests = model.step(is_hurried=True).requests
    assert sorted(len(request.parts) for request in requests) == [2_000, 10_000]
