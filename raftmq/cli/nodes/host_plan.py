"""`raftmq cluster configure`: the settings files of a cluster, one or more brokers on each host.

Owns the layout: which id, ports and directory each broker has, and which of them vote. A broker is
one process on one core; more brokers on a host use more of its cores. Replicas that stand on one
host fail together, so the host is the rack of all its brokers, and at most one of them votes.

Nothing is contacted. Files are written all or none, and none that exists is replaced.
"""

from __future__ import annotations

import json
import shlex
import sys
import tomllib
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

from raftmq.broker.settings import parse_settings
from raftmq.cli.nodes.start_checks import tell_warnings
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.errors import InvalidConfig
from raftmq.model import PORT_MAX, Address
from raftmq.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path, PurePosixPath

PORTS_PER_BROKER = 3  # for clients, for the quorum, between brokers: as in the one-broker files
# For hosts that are named: on its own machine a name often means a loopback address, at which no
# other host arrives.
EVERYWHERE = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class HostPlan:
    """What the cluster is to look like.

    Attributes:
        hosts: where the brokers run: addresses or names that all hosts and clients can reach.
        voter_count: brokers of the first so many hosts form the quorum, one on each.
        first_port: of the clients' listener of the first broker of a host; each further one takes
            the three ports behind.
    """

    cluster_id: str
    hosts: tuple[str, ...]
    brokers_per_host: int
    voter_count: int
    directory: PurePosixPath
    first_port: int


@dataclass(frozen=True, slots=True)
class PlannedBroker:
    node_id: int
    host: str
    directory: PurePosixPath
    clients: Address
    quorum: Address | None
    brokers: Address


def plan_brokers(plan: HostPlan) -> list[PlannedBroker]:
    """The brokers of all hosts. The voters have the ids from 1 on, so the first round over the
    hosts is theirs.

    Raises:
        CommandError: one line for each problem; exit code 2.
    """
    if problems := list(_problems(plan)):
        raise CommandError("\n".join(problems), ExitCode.USAGE)
    return [
        _broker(plan, node_id, node_id - 1)
        for node_id in range(1, len(plan.hosts) * plan.brokers_per_host + 1)
    ]


def _broker(plan: HostPlan, node_id: int, number: int) -> PlannedBroker:
    turn, at = divmod(number, len(plan.hosts))
    host, port = plan.hosts[at], plan.first_port + turn * PORTS_PER_BROKER
    is_only = plan.brokers_per_host == 1
    return PlannedBroker(
        node_id,
        host,
        plan.directory if is_only else plan.directory / f"node-{node_id}",
        Address(host, port),
        Address(host, port + 1) if number < plan.voter_count else None,
        Address(host, port + 2),
    )


def _problems(plan: HostPlan) -> Iterator[str]:
    for host in sorted({host for host in plan.hosts if plan.hosts.count(host) > 1}):
        yield f"--host {host}: named twice; --brokers-per-host puts several brokers on a host"
    if plan.voter_count > len(plan.hosts):
        yield (
            f"--voters {plan.voter_count}: more than the {counted(len(plan.hosts), 'host')}, and"
            " voters of one host fail together: name more hosts, or take fewer voters (one is for"
            " trying things out: its disk is the cluster)"
        )
    if not plan.directory.is_absolute():  # on the hosts, which may start it from anywhere
        yield f"--directory {plan.directory}: write it from / on"
    last = plan.first_port + plan.brokers_per_host * PORTS_PER_BROKER - 1
    if last > PORT_MAX:
        yield f"--port {plan.first_port}: the last broker of a host would need port {last}"


def settings_text(broker: PlannedBroker, brokers: Sequence[PlannedBroker], cluster_id: str) -> str:
    """A file for `raftmq broker --config`."""
    voters = {one.node_id: one.quorum for one in brokers if one.quorum is not None}
    role = "votes in the quorum" if broker.quorum else "has no vote"
    lines = [
        f"# Node {broker.node_id} of cluster {cluster_id}: runs on {broker.host}, carries"
        f" partitions, {role}.",
        "# Written by `raftmq cluster configure`; what each key means: docs/CONFIGURATION.md.",
        "",
        "[node]",
        f"id = {broker.node_id}",
        f"cluster_id = {_text(cluster_id)} # the same on all nodes, for ever",
        f"directory = {_text(str(broker.directory))}",
        f"rack = {_text(broker.host)} # replicas of one partition are spread over hosts",
        "",
        "[quorum.voters] # the same on all nodes, one a host; ids and their number are for ever",
        *(f"{voter} = {_text(str(address))}" for voter, address in voters.items()),
        *_listener("clients", broker.clients),
        *_listener("brokers", broker.brokers),
    ]
    return "\n".join([*lines, ""])


def _listener(name: str, address: Address) -> Iterator[str]:
    yield from ("", "[[listeners]]", f"name = {_text(name)}")
    bind = address if _is_ip(address.host) else Address(EVERYWHERE, address.port)
    yield f"bind = {_text(str(bind))}"
    if bind != address:
        yield f"advertised = {_text(str(address))}"


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:  # a name
        return False
    return True


def _text(value: str) -> str:
    """As TOML has it: its basic strings take what JSON's do."""
    return json.dumps(value, ensure_ascii=False)


def write_plan(plan: HostPlan, into: Path) -> int:
    """Write `INTO/HOST/node-ID.toml` for each broker, and print what to do with them.

    Raises:
        CommandError: exit code 2 for what is wrong with the plan, 4 if a file exists already, 1 if
            one cannot be written; then none is left.
    """
    brokers = plan_brokers(plan)
    texts = {
        into / one.host / f"node-{one.node_id}.toml": settings_text(one, brokers, plan.cluster_id)
        for one in brokers
    }
    warnings = dict.fromkeys(warning for text in texts.values() for warning in _warnings(text))
    for path in texts:
        if path.exists():
            raise CommandError(
                f"{path} exists already and is not replaced: choose another --into",
                ExitCode.EXISTS,
            )
    _write(texts)
    tell_warnings(warnings)
    _tell(plan, brokers, into)
    return ExitCode.OK


def _warnings(text: str) -> list[str]:
    """What a node would say of its settings, or refuse: better here than on its host."""
    try:
        return parse_settings(tomllib.loads(text)).warnings
    except InvalidConfig as error:
        raise CommandError("\n".join(error.problems), ExitCode.USAGE) from error


def _write(texts: Mapping[Path, str]) -> None:
    written: list[Path] = []
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for path in written:
            path.unlink(missing_ok=True)
        raise CommandError(f"{error.filename}: {error.strerror}", ExitCode.FAILED) from error


def _tell(plan: HostPlan, brokers: Sequence[PlannedBroker], into: Path) -> None:
    bootstrap = ",".join(str(one.clients) for one in brokers[: len(plan.hosts)])
    said = [
        f"{counted(len(brokers), 'broker')} on {counted(len(plan.hosts), 'host')},"
        f" {counted(plan.voter_count, 'voter')}:",
        *(
            f"  {into / host}: "
            + " ".join(f"node-{one.node_id}.toml" for one in brokers if one.host == host)
            for host in plan.hosts
        ),
        "next: take each folder to its host, and for each file there",
        "  raftmq broker --config FILE --check   # tries all that a start would",
        "  raftmq broker --config FILE",
        f"then: raftmq -b {shlex.quote(bootstrap)} cluster health --wait",
    ]
    sys.stdout.write("\n".join([*said, ""]))
