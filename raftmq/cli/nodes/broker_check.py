"""`raftmq broker --check`: all that can be said of a node's settings without starting it.

Owns what is printed: the settings that count, as `-o` takes them, each with where it is from. What
is tried is what a start tries, see `start_checks`.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from raftmq.broker.node_config_keys import (
    GROUP_KEYS,
    LIMIT_KEYS,
    LOG_KEYS,
    OFFSETS_RETENTION,
)
from raftmq.cli.nodes.node_settings import failure, settings_of
from raftmq.cli.nodes.start_checks import check_start, warn
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from raftmq.broker.settings import BrokerSettings


def check_broker(config: Path, overrides: Sequence[str]) -> int:
    """
    Raises:
        CommandError: one line for each problem; exit code 2.
    """
    try:
        settings, sources = settings_of(config, overrides)
    except RaftmqError as error:
        raise CommandError(str(failure([error], None)), ExitCode.USAGE) from error
    warn(settings)
    holder = check_start(settings, is_trial=True)
    sys.stdout.write("".join(f"{line}\n" for line in effective(settings, sources)))
    if holder:
        what = f"it runs already: {holder} holds {settings.directory}; its addresses are not tried"
        click.echo(f"raftmq: {what}", err=True)
    return ExitCode.OK


def effective(settings: BrokerSettings, sources: Mapping[str, str]) -> Iterator[str]:
    """`key = value` for each setting, and where the value is from."""
    for key, value in _values(settings):
        text = json.dumps(value, ensure_ascii=False)
        source = f"from {sources[key]}" if key in sources else "default"
        yield f"{key} = {text}  # {source}"


def _values(settings: BrokerSettings) -> Iterator[tuple[str, object]]:
    yield "node.id", settings.node_id
    yield "node.cluster_id", settings.cluster_id
    yield "node.directory", str(settings.directory)
    if settings.rack is not None:
        yield "node.rack", settings.rack
    yield "node.clock_difference_ms_max", settings.clock_difference_ms_max
    for voter, address in settings.voters.items():
        yield f"quorum.voters.{voter}", str(address)
    yield "quorum.replace", settings.is_replacement
    for one in settings.listeners:
        yield f"listeners.{one.name}.bind", str(one.bind)
        yield f"listeners.{one.name}.advertised", str(one.advertised)
    for key in GROUP_KEYS:
        home = settings.groups if key is OFFSETS_RETENTION else settings.groups.rules
        yield key.name, getattr(home, key.last_name)
    yield "transactions.timeout_ms_max", settings.transaction_timeout_ms_max
    yield "reassignment.bytes_per_second", settings.reassignment_bytes_per_second
    for key in LIMIT_KEYS:
        yield key.name, getattr(settings.limits, key.last_name)
    for key in LOG_KEYS:
        yield key.name, getattr(settings.log, key.last_name)
