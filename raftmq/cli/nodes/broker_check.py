"""`raftmq broker --check`: all that can be said of a node's settings without starting it.

Reads and tries, changes nothing: addresses are listened on for a moment, and only while no node
runs on the directory, as its own would be taken. Prints the settings that count, as `-o` takes
them.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import click
import trio

from raftmq.broker.meta import check_directory
from raftmq.broker.node_config_keys import GROUP_KEYS, LIMIT_KEYS, OFFSETS_RETENTION
from raftmq.cli.nodes.node_settings import failure, settings_of, warn
from raftmq.cli.nodes.startup_hints import ListeningNetwork, lock_holder
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.disk.files import OsFiles
from raftmq.errors import RaftmqError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from raftmq.broker.settings import BrokerSettings, SettingOrigin
    from raftmq.model import Address


def check_broker(config: Path, overrides: Sequence[str]) -> int:
    """
    Raises:
        CommandError: one line for each problem; exit code 2.
    """
    settings = None
    try:
        settings, origins = settings_of(config, overrides)
        warn(settings)
        check_directory(
            OsFiles(read_only=True), settings.directory, (settings.cluster_id, settings.node_id)
        )
    except RaftmqError as error:
        raise CommandError(str(failure([error], settings)), ExitCode.USAGE) from error
    holder = lock_holder(settings.directory / ".lock")
    problems = [*_directory_problems(settings.directory)]
    if not holder:
        problems += trio.run(_address_problems, settings)
    if problems:
        raise CommandError("\n".join(problems), ExitCode.USAGE)
    sys.stdout.write("".join(f"{line}\n" for line in effective(settings, origins)))
    if holder:
        what = f"it runs already: {holder} holds {settings.directory}; its addresses are not tried"
        click.echo(f"raftmq: {what}", err=True)
    return ExitCode.OK


def effective(settings: BrokerSettings, origins: Mapping[str, SettingOrigin]) -> Iterator[str]:
    """`key = value` for each setting, defaults too, and where it is from unless from the file."""
    for key, value in _values(settings):
        origin = origins.get(key)
        text = json.dumps(value, ensure_ascii=False)
        yield f"{key} = {text}" + (f"  # from {origin.source}" if origin else "")


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
    for key in LIMIT_KEYS:
        yield key.name, getattr(settings.limits, key.last_name)
    yield "log.level", settings.log.level
    yield "log.format", settings.log.format


def _directory_problems(directory: Path) -> Iterator[str]:
    """Whether this user could write there; the nearest that exists decides."""
    found = next(one for one in (directory, *directory.absolute().parents) if one.exists())
    if not os.access(found, os.W_OK | os.X_OK):
        who = f"the user that runs this (uid {os.getuid()})"
        yield f"node.directory = {directory}: {who} may not write to {found}, see `ls -ld {found}`"


async def _address_problems(settings: BrokerSettings) -> list[str]:
    network, problems = ListeningNetwork(settings), list[str]()
    for address in _own_addresses(settings):
        try:
            for listener in await network.open_listeners(address):
                await listener.aclose()
        except RaftmqError as error:
            problems.append(str(error))
    return problems


def _own_addresses(settings: BrokerSettings) -> Iterator[Address]:
    yield from (one.bind for one in settings.listeners)
    if settings.is_voter:
        yield settings.voters[settings.node_id]
