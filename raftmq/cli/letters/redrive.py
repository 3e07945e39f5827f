"""`raftmq dlq redrive`: dead letters go back to the topics where they stood.

Each step is a transaction: records are sent, letters between them that are not meant are appended
again behind all others, and the offset of the group `__redrive.X` moves over both. So what dies in
between sends nothing twice, and a second command ends the transaction of the first. What was sent
back is deleted afterwards, or by the next run: offsets of groups without members are forgotten
before letters are.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from raftmq.cli.clusters.connected import run_connected
from raftmq.cli.letters.letter_source import find_box, letter_object, open_span, read_letters
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.cli.terminal.output import row_blocks, write_json, write_table
from raftmq.client.administration.checks import check_topic
from raftmq.client.dead_letters.letters import (
    REDRIVEN,
    dead_letter_topic,
    read_letter,
    redriven_headers,
)
from raftmq.client.dead_letters.rejecting import MAX_BYTES, MAX_BYTES_KEY
from raftmq.errors import MessageTooLarge, RaftmqError, TransactionAborted
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raftmq.cli.letters.letter_source import Box, LetterFilter, Span
    from raftmq.client.administration.admin import Admin
    from raftmq.client.client import Client
    from raftmq.client.consumer.record import ConsumerRecord
    from raftmq.client.dead_letters.letters import DeadLetter
    from raftmq.client.producer.delivery import Delivery
    from raftmq.client.producer.producer import Producer

STEP_RECORDS, STEP_BYTES = 500, 4 << 20  # of one transaction
NAMED_MAX = 10  # letters that are too large, in one line


class RedriveOrder(NamedTuple):
    """Attributes:
    to_topic: in place of the topic of origin.
    most: at most so many; None: all.
    as_json: a dry run tells of each letter.
    """

    group: str
    wanted: LetterFilter
    to_topic: str | None
    most: int | None
    is_dry: bool
    as_json: bool


class Plan(NamedTuple):
    """What is to be sent.

    Attributes:
        ends: behind the last letter that is meant, by partition.
        counts: of those that are meant, by the topic to which they go.
        homeless: meant, and without an origin.
    """

    ends: dict[int, int]
    counts: dict[str, int]
    homeless: int


def redrive(order: RedriveOrder, bootstrap: str | None, timeout: float) -> int:
    if order.to_topic is not None:
        check_topic(order.to_topic)
        if order.to_topic == dead_letter_topic(order.group):
            line = f"--to-topic {order.to_topic}: they stand there, and would lose their origin"
            raise CommandError(line, ExitCode.USAGE)

    done = Sending(order)

    async def run(client: Client) -> Plan:
        admin = client.admin.with_timeout(timeout)
        box = await find_box(admin, order.group)
        if order.is_dry:
            return await _plan(client, admin, box, order)
        async with client.producer(
            transaction_id=box.redrive_group,
            max_request_size=MAX_BYTES,  # the topics decide
            buffer_memory=2 * MAX_BYTES,
        ) as producer:
            box = await find_box(admin, order.group)  # what another command had begun has ended
            await _delete_sent(admin, box.topic, box.sent)  # ... and may have been killed then
            plan = await _plan(client, admin, box, order)
            await done.run(client, producer, box, _spans(box, plan))
        await _delete_sent(admin, box.topic, plan.ends)
        return plan

    try:
        # It may take long: nothing but silence ends it.
        plan = run_connected(run, bootstrap)
    except BaseException as error:
        if not order.is_dry and (done.sent or isinstance(error, KeyboardInterrupt)):
            count = counted(done.sent.total(), "dead letter")
            sys.stderr.write(
                f"raftmq: {count} of group {order.group} sent back so far: run it again, it goes on"
                " with the others\n"
            )
        raise
    _tell(order, plan, done)
    return ExitCode.FAILED if done.large else ExitCode.OK


async def _plan(client: Client, admin: Admin, box: Box, order: RedriveOrder) -> Plan:
    """
    Raises:
        CommandError: a topic to which letters would go is not there.
    """
    plan = Plan({}, {}, 0)
    found = homeless = 0

    def take(record: ConsumerRecord) -> bool:
        nonlocal found, homeless
        letter = read_letter(record.headers)
        if not order.wanted.passes(record, letter):
            return True
        topic = _target(letter, order)
        if topic is None:
            homeless += 1
            return True
        found += 1
        plan.ends[record.partition] = record.offset + 1
        plan.counts[topic] = plan.counts.get(topic, 0) + 1
        if order.is_dry and order.as_json:
            add(letter_object(record, letter) | {"to": topic})
        return order.most is None or found < order.most

    with row_blocks(write_json) as add:
        await read_letters(client, box.topic, box.spans, take)
    there = {one.name for one in await admin.list_topics(list(plan.counts))} if found else set()
    if missing := sorted(plan.counts.keys() - there):
        count = counted(sum(plan.counts[name] for name in missing), "dead letter")
        line = (
            f"{count} would go to {', '.join(missing)}, which is not there, and nothing was sent:"
            " make it, or give --to-topic"
        )
        raise CommandError(line, ExitCode.NOT_FOUND)
    return plan._replace(homeless=homeless)


def _target(letter: DeadLetter, order: RedriveOrder) -> str | None:
    """None: nobody knows."""
    if order.to_topic is not None:
        return order.to_topic
    return None if letter.origin is None else letter.origin.topic


class Sending:
    """Sends what is meant, in steps.

    Attributes:
        sent: letters that were sent, by topic.
        kept: the number of those that were not meant, and stand behind the others now.
        large: those that their topic does not take: which they are.
    """

    def __init__(self, order: RedriveOrder) -> None:
        self._order = order
        self.sent, self.kept = Counter[str](), 0
        self.large: list[str] = []

    async def run(self, client: Client, producer: Producer, box: Box, spans: list[Span]) -> None:
        for span in spans:
            step: list[ConsumerRecord] = []
            size = 0
            # One consumer for all steps: to open one takes longer than what it reads.
            async with open_span(client, box.topic, span) as letters:
                async for record in letters:
                    step.append(record)
                    size += record.size
                    if len(step) == STEP_RECORDS or size >= STEP_BYTES:
                        await self._send(producer, box, step)
                        step, size = [], 0
            if step:
                await self._send(producer, box, step)

    async def _send(self, producer: Producer, box: Box, step: list[ConsumerRecord]) -> None:
        """One that its topic does not take aborts the step: it is found by halves, and kept."""
        try:
            await self._commit(producer, box, step)
        except (MessageTooLarge, TransactionAborted) as error:
            if not any(isinstance(one, MessageTooLarge) for one in (error, error.__cause__)):
                raise
            if len(step) == 1:
                await self._keep(producer, box, step[0], error)
                return
            middle = len(step) // 2
            await self._send(producer, box, step[:middle])
            await self._send(producer, box, step[middle:])

    async def _keep(
        self, producer: Producer, box: Box, record: ConsumerRecord, error: RaftmqError
    ) -> None:
        letter = read_letter(record.headers)
        topic = self._topic_of(record, letter)
        if topic is None:  # it would have to be appended again
            raise CommandError(f"{box.topic}, offset {record.offset}: {error}", ExitCode.FAILED)
        delivery = await self._commit(producer, box, [record], is_kept=True)
        place = f"of {letter.origin}, " if letter.origin else ""
        self.large.append(f"offset {(await delivery).offset}, {place}for {topic}")

    async def _commit(
        self, producer: Producer, box: Box, step: list[ConsumerRecord], *, is_kept: bool = False
    ) -> Delivery:
        """The outcome of the last record."""
        sent = Counter[str]()
        async with producer.transaction() as tx:
            for record in step:
                letter = read_letter(record.headers)
                topic = None if is_kept else self._topic_of(record, letter)
                if topic is not None:
                    sent[topic] += 1
                    delivery = await tx.enqueue(
                        topic,
                        record.value,
                        key=record.key,
                        headers=redriven_headers(record.headers, letter),
                        tags=record.tags,
                    )
                else:
                    delivery = await tx.enqueue(
                        box.topic,
                        record.value,
                        key=record.key,
                        headers=record.headers,
                        tags=record.tags,
                        timestamp=max(record.timestamp, 0),
                    )
            place = box.topic, step[-1].partition
            tx.commit_offsets({place: step[-1].offset + 1}, group=box.redrive_group)
        self.sent += sent
        self.kept += 0 if is_kept else len(step) - sent.total()
        return delivery

    def _topic_of(self, record: ConsumerRecord, letter: DeadLetter) -> str | None:
        """None: it is not meant, or nobody knows."""
        is_meant = self._order.wanted.passes(record, letter)
        return _target(letter, self._order) if is_meant else None


def _spans(box: Box, plan: Plan) -> list[Span]:
    """Up to the last letter that is meant: what stands behind it stays where it is."""
    return [
        span._replace(end=plan.ends[span.partition])
        for span in box.spans
        if span.partition in plan.ends
    ]


async def _delete_sent(admin: Admin, topic: str, ends: Mapping[int, int]) -> None:
    if not ends:
        return
    try:
        await admin.delete_records(topic, dict(ends))
    except RaftmqError as error:  # the next run does it, while the offset is known
        sys.stderr.write(
            f"raftmq: what was sent back still stands in {topic}, and would be sent again after"
            f" groups.offsets_retention_ms: run it again before: {error}\n"
        )


def _tell(order: RedriveOrder, plan: Plan, done: Sending) -> None:
    counts = plan.counts if order.is_dry else done.sent
    if plan.homeless:
        count = counted(plan.homeless, "dead letter")
        sys.stderr.write(f"raftmq: {count} without an origin: give --to-topic to send them\n")
    if done.large:
        count, others = counted(len(done.large), "dead letter"), len(done.large) - NAMED_MAX
        which = "; ".join([*done.large[:NAMED_MAX], *([f"{others} more"] if others > 0 else [])])
        sys.stderr.write(
            f"raftmq: {count} too large with the header {REDRIVEN}, and kept: {which}: raise"
            f" {MAX_BYTES_KEY} of that topic, or give --to-topic\n"
        )
    if order.as_json:
        if not order.is_dry:  # else each letter was told
            write_json(
                {"group": order.group, "topic": topic, "sent": count}
                for topic, count in sorted(counts.items())
            )
        return
    if not plan.counts and not plan.homeless:
        sys.stdout.write(f"group {order.group}: no such dead letters, nothing to send\n")
        return
    if not plan.counts:
        return
    title = "to be sent" if order.is_dry else "sent"
    write_table(("topic", title), sorted(counts.items()))
    if done.kept:
        count = counted(done.kept, "dead letter")
        sys.stderr.write(f"raftmq: appended again behind all others, as not meant: {count}\n")
