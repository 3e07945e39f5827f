"""`raftmq produce` at work: what was typed becomes an order, the order is carried out and told of.

Exit code 0 means that every record was acknowledged. Whatever ends it earlier, the last line says
how many were delivered, how many were not, and of how many nobody knows.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import click

from raftmq.cli.connected import run_connected
from raftmq.cli.data.escapes import unescape
from raftmq.cli.data.feed import Feed
from raftmq.cli.data.lines import Shape
from raftmq.cli.data.live import Progress, show_progress, show_rates
from raftmq.cli.data.sources import STANDARD_INPUT, total_bytes
from raftmq.cli.data.streams import is_terminal
from raftmq.cli.data.topics_there import check_there
from raftmq.cli.exits import CommandError, ExitCode, exit_code_of
from raftmq.cli.silence import Silence, Wanted
from raftmq.client.administration.checks import check_topic
from raftmq.client.producer.options import producer_options
from raftmq.client.producer.record import checked_extras
from raftmq.client.producer.statistics import Statistics
from raftmq.errors import InvalidRecord, RaftmqError
from raftmq.wire.compression import compress

if TYPE_CHECKING:
    from raftmq.client.client import Client
    from raftmq.client.producer.producer import Producer


class Order(NamedTuple):
    """What is to be sent: every problem with it that needs no cluster has been told."""

    topic: str
    files: tuple[str, ...]
    delimiter: bytes
    shape: Shape
    headers: tuple[tuple[str, bytes], ...]
    tags: tuple[str, ...]
    partition: int | None
    options: dict[str, Any]

    @property
    def is_typed(self) -> bool:
        return STANDARD_INPUT in self.files and is_terminal("stdin")


def order_of(
    topic: str,
    timeout: float,
    *,
    key: str | None,
    key_delimiter: str | None,
    headers: tuple[str, ...],
    tags: tuple[str, ...],
    partition: int | None,
    files: tuple[str, ...],
    delimiter: str,
    is_null: bool,
    acks: int | str,
    compression: str | None,
    preset: str | None,
) -> Order:
    """Raises click.UsageError, RaftmqError."""
    shape = Shape(
        None if key is None else os.fsencode(key),
        None if key_delimiter is None else _delimiter("-K", key_delimiter),
        is_null,
    )
    options = {"acks": acks, "compression": compression, "delivery_timeout_ms": timeout * 1000}
    options |= {} if preset is None else {"preset": preset}
    order = Order(
        check_topic(topic),
        files or (STANDARD_INPUT,),
        _delimiter("-D", delimiter),
        shape,
        tuple(map(_header, headers)),
        tags,
        partition,
        options,
    )
    _check(order)
    return order


def _delimiter(name: str, text: str) -> bytes:
    try:
        found = unescape(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=name) from error
    if not found:
        raise click.BadParameter("it is empty: say what to split at", param_hint=name)
    return found


def _header(text: str) -> tuple[str, bytes]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise click.BadParameter(f"{text!r}: expected NAME=VALUE", param_hint="-H")
    return name, os.fsencode(value)


def _check(order: Order) -> None:
    """What the first record would tell, and cannot take back what was read for it."""
    compress(producer_options(order.options).codec, b"")
    try:
        checked_extras(order.headers, order.tags, order.partition)
    except InvalidRecord as error:
        raise click.UsageError(str(error)) from error


class Run:
    """One call, as far as it has come."""

    def __init__(self, order: Order, *, quiet: bool) -> None:
        self._order, self._quiet = order, quiet
        self._feed = Feed(order.files, order.delimiter, order.shape)
        self._statistics = Statistics()
        self._start = monotonic()

    async def go(self, client: Client) -> None:
        order = self._order
        partitions = () if order.partition is None else (order.partition,)
        wanted = Wanted((order.topic,), partitions, is_quorum_needed=True)
        silence = Silence(client.admin, wanted, self._undelivered, is_told=not self._quiet)
        async with silence.explained():
            await self._go(client, partitions)

    async def _go(self, client: Client, partitions: tuple[int, ...]) -> None:
        order = self._order
        await check_there(client, order.topic, partitions)
        self._start = monotonic()
        if order.is_typed and not self._quiet:
            _say("a record per line; Ctrl-D ends")
        async with client.producer(**order.options) as producer:
            self._statistics = producer.statistics
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._feed.run)
                tasks.start_soon(partial(show_progress, self._progress(), quiet=self._is_silent))
                await self._send_all(producer)
                tasks.cancel_scope.cancel()

    async def _send_all(self, producer: Producer) -> None:
        order = self._order
        headers, tags = order.headers or None, order.tags or None
        while await self._feed.wait():
            await producer.send_many(
                order.topic,
                self._feed.burst(),
                value=itemgetter(1),
                key=itemgetter(0) if order.shape.has_key else None,
                headers=None if headers is None else lambda _row: headers,
                tags=None if tags is None else lambda _row: tags,
                partition=order.partition,
            )

    # -- what is told ----------------------------------------------------------------------

    def _undelivered(self) -> int | None:
        """Grows with what is delivered; None: nothing is on its way."""
        delivered = self._statistics.records
        return delivered if self._feed.read_records > delivered else None

    @property
    def _is_silent(self) -> bool:
        """A bar would be in the way of whoever types."""
        return self._quiet or self._order.is_typed

    def _progress(self) -> Progress:
        total = None
        with suppress(OSError, CommandError):
            total = total_bytes(self._order.files)
        return Progress(lambda: self._feed.read_bytes, self._rates, total)

    def _rates(self) -> str:
        records, seconds = self._statistics.records, monotonic() - self._start
        rates = show_rates(records=records, byte_count=self._feed.read_bytes, seconds=seconds)
        return f"{records} records, {rates}"

    def summary(self) -> str:
        statistics, seconds = self._statistics, monotonic() - self._start
        verb = "sent, and nobody asked whether they came," if self._is_blind else "delivered"
        rates = show_rates(
            records=statistics.records, byte_count=self._feed.read_bytes, seconds=seconds
        )
        line = f"{_counted(statistics.records)} {verb} in {seconds:.2f} s: {rates}"
        repeated = statistics.repeated_records
        twice = f"; {repeated} of them may stand in the log twice" if repeated else ""
        return line + twice

    @property
    def _is_blind(self) -> bool:
        return bool(self._order.options["acks"] == 0)

    def fate(self) -> str:
        """Of the records, where it has ended early; nothing if none was read."""
        if not self._feed.read_records:
            return ""
        statistics = self._statistics
        unknown = statistics.unknown_records
        others = self._feed.read_records - statistics.records - unknown
        parts = [f"{_counted(statistics.records)} {'sent' if self._is_blind else 'delivered'}"]
        parts += [f"{unknown} perhaps delivered"] if unknown else []
        parts += [f"{others} read and not delivered"] if others else []
        return ", ".join(parts)


def run_produce(order: Order, bootstrap: str | None, *, quiet: bool) -> int:
    run = Run(order, quiet=quiet)
    try:
        run_connected(run.go, bootstrap)
    except (RaftmqError, OSError) as error:
        line = "; ".join(filter(None, (" ".join(str(error).split()), run.fate())))
        raise CommandError(line, exit_code_of(error)) from error
    except KeyboardInterrupt:
        if fate := run.fate():
            _say(fate)
        raise
    if not quiet:
        _say(run.summary())
    return ExitCode.OK


def _counted(count: int) -> str:
    return f"{count} record" if count == 1 else f"{count} records"


def _say(line: str) -> None:
    click.echo(f"raftmq: {line}", err=True)
