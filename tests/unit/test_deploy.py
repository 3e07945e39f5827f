"""What deploy/ and docs/DEPLOYING.md tell people to use is what the code takes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import rich_click as click

from raftmq.broker.lifetime import STOP_SECONDS_MAX
from raftmq.broker.settings import BROKERS, BrokerSettings, parse_settings
from raftmq.cli.main import NOUNS, main
from raftmq.cli.nodes.broker_probe import ANSWER_SECONDS_MAX
from raftmq.cli.nodes.broker_run import NOTIFY_SECONDS_MAX
from raftmq.cli.nodes.overrides import override_by_variables
from raftmq.model import Address
from tests.unit.broker.test_settings import load_settings

PROJECT = Path(__file__).parents[2]
DEPLOY = PROJECT / "deploy"
PAGE = (PROJECT / "docs/DEPLOYING.md").read_text("utf-8")
COMPOSE = (DEPLOY / "compose.yaml").read_text("utf-8")
KUBERNETES = (DEPLOY / "kubernetes.yaml").read_text("utf-8")
UNIT = DEPLOY / "raftmq.service"
FLUSH_SECONDS_MAX = 60  # ample, for whatever is left when the leaders have gone


def together(nodes: list[BrokerSettings]) -> None:
    """Settings of nodes of one cluster."""
    assert len({node.cluster_id for node in nodes}) == 1
    assert len({node.node_id for node in nodes}) == len(nodes)
    assert all(node.voters == nodes[0].voters for node in nodes)
    assert not any(node.warnings for node in nodes)
    told = [one.advertised for node in nodes for one in node.listeners]
    assert len({*told, *nodes[0].voters.values()}) == len(told) + 3


def test_the_settings_of_four_hosts() -> None:
    """Three voters, and a broker that is none; each tells the others its own addresses."""
    nodes = [load_settings(DEPLOY / f"node-{number}.toml") for number in (1, 2, 3, 4)]
    together(nodes)
    assert [node.is_voter for node in nodes] == [True, True, True, False]
    for node in nodes:
        hosts = {one.advertised.host for one in node.listeners}
        assert hosts == {f"10.0.0.{node.node_id}"}
        if node.is_voter:
            assert node.voters[node.node_id].host in hosts


def test_every_settings_file_is_tested() -> None:
    """One that is added here wants a test."""
    names = sorted(path.name for path in DEPLOY.glob("*.toml"))
    assert names == ["compose.toml", *(f"node-{number}.toml" for number in (1, 2, 3, 4))]


# Containers


def blocks(text: str, indent: int) -> dict[str, str]:
    """The parts of a YAML mapping that begin at this column, by their keys."""
    parts = re.split(rf"^ {{{indent}}}([\w-]+):", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def services() -> dict[str, dict[str, str]]:
    found = blocks(blocks(COMPOSE, 0)["services"], 2)
    return {name: blocks(body, 4) for name, body in found.items()}


def environment(service: dict[str, str]) -> dict[str, str]:
    return dict(re.findall(r'^ {6}(\w+): "([^"]*)"$', service["environment"], re.MULTILINE))


def test_the_compose_file_is_plain() -> None:
    """No tabs, nothing but two blanks a level, and no key twice: it is read here without YAML."""
    lines = [line for line in COMPOSE.splitlines() if not line.lstrip().startswith("#")]
    assert not any("\t" in line for line in lines)
    assert all((len(line) - len(line.lstrip())) % 2 == 0 for line in lines)
    assert len(re.findall(r"^\S[\w-]+:", COMPOSE, re.MULTILINE)) == len(blocks(COMPOSE, 0))


def test_the_nodes_of_the_compose_file() -> None:
    """One file and each service's environment make three nodes; published ports are advertised."""
    nodes = []
    for name, service in services().items():
        values: dict[str, Any] = tomllib.loads((DEPLOY / "compose.toml").read_text("utf-8"))
        override_by_variables(values, environment(service))
        node = parse_settings(values)
        nodes.append(node)
        assert service["hostname"].strip() == name == f"raftmq-{node.node_id}"
        listeners = {one.name: one for one in node.listeners}
        outside = listeners.pop("outside")
        assert f'"{outside.advertised}:{outside.bind.port}"' in service["ports"]
        assert f'"{name}:{node.directory}"' in service["volumes"]
        assert {one.advertised.host for one in listeners.values()} == {name}
        assert BROKERS in listeners
    together(nodes)
    assert set(services()) == set(blocks(blocks(COMPOSE, 0)["volumes"], 2))


def test_the_container() -> None:
    """Not root, signals reach the node, and what it keeps is on a volume."""
    text = (DEPLOY / "Containerfile").read_text("utf-8")
    last_stage = text[text.rindex("\nFROM ") :]
    steps = re.findall(r"^([A-Z]+) (.*)$", last_stage, re.MULTILINE)
    assert ("USER", "raftmq") in steps
    assert ("STOPSIGNAL", "SIGTERM") in steps
    assert ("ENTRYPOINT", '["raftmq"]') in steps
    assert ("CMD", '["broker", "--config", "/etc/raftmq/node.toml"]') in steps
    assert ("VOLUME", "/var/lib/raftmq") in steps
    assert 'dockerfile: "deploy/Containerfile"' in COMPOSE
    assert ":/etc/raftmq/node.toml:ro" in COMPOSE


# Kubernetes


def kubernetes_node(node_id: int) -> BrokerSettings:
    """Of one pod: the settings of the config map, and above them what its container sets."""
    (settings,) = re.findall(r"^  node\.toml: \|\n((?:    .*\n|\n)+)", KUBERNETES, re.MULTILINE)
    values: dict[str, Any] = tomllib.loads(dedent(settings))
    told = dict(re.findall(r'- name: "(RAFTMQ_\w+)"\n +value: "([^"]+)"', KUBERNETES))
    variables = {name: text.replace("$(POD)", f"raftmq-{node_id}") for name, text in told.items()}
    (own, bind) = re.findall(r"export (RAFTMQ_\w+__)\$RAFTMQ_NODE__ID=([\d.:]+);", KUBERNETES)[0]
    override_by_variables(
        values, variables | {"RAFTMQ_NODE__ID": str(node_id), f"{own}{node_id}": bind}
    )
    return parse_settings(values)


def test_the_pods_of_kubernetes() -> None:
    """Three nodes of one cluster, each with the names that the others know it by."""
    nodes = [kubernetes_node(node_id) for node_id in (1, 2, 3)]
    assert len({node.cluster_id for node in nodes}) == 1
    for node in nodes:
        pod = f"raftmq-{node.node_id}.raftmq"
        assert {one.advertised.host for one in node.listeners} == {pod}
        others = {str(at) for voter, at in node.voters.items() if voter != node.node_id}
        assert len(others) == 2
        assert str(Address(pod, 9293)) not in others
        assert node.voters[node.node_id] == Address("0.0.0.0", 9293)
        assert not node.warnings
    assert "replicas: 3\n" in KUBERNETES
    assert "  ordinals:\n    start: 1\n" in KUBERNETES


def test_only_nodes_reach_the_ports_of_nodes() -> None:
    """They trust who comes: the policy lets pods of the same name in, clients at 9292."""
    (policy,) = [one for one in KUBERNETES.split("\n---\n") if 'kind: "NetworkPolicy"' in one]
    anywhere, inside = policy.partition("ingress:")[2].split("- from:")
    assert re.findall(r"port: (\d+)", anywhere) == ["9292"]
    assert re.findall(r"port: (\d+)", inside) == ["9293", "9294"]
    assert 'app: "raftmq"' in inside
    assert "resources:\n            requests:\n" in KUBERNETES


def test_the_probes_of_kubernetes() -> None:
    """They are commands of ours, and have longer than an answer may take."""
    probes = re.findall(r'command: (\["raftmq".*\])\n', KUBERNETES)
    words = [json.loads(probe)[1:] for probe in probes]
    assert [each[-1] for each in words] == ["live", "ready"]
    for each in words:
        noun, *rest = each
        context = main.make_context("raftmq", [noun, *rest], resilient_parsing=True)
        check_call(context, [noun, *rest])
    limits = re.findall(r"timeoutSeconds: (\d+)", KUBERNETES)
    assert all(int(limit) > ANSWER_SECONDS_MAX for limit in limits)
    periods = re.findall(r"periodSeconds: (\d+)", KUBERNETES)
    assert all(int(period) > int(limit) for period, limit in zip(periods, limits, strict=True))
    grace = re.search(r"terminationGracePeriodSeconds: (\d+)", KUBERNETES)
    assert grace is not None
    assert int(grace[1]) > STOP_SECONDS_MAX + FLUSH_SECONDS_MAX


def test_the_image_has_the_whole_wheel_and_little_else() -> None:
    """What the build copies is what the wheel consists of, and all that a builder is sent."""
    text = (DEPLOY / "Containerfile").read_text("utf-8")
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
    packages = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    copied = {
        name
        for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE)
        for name in line.split()
    }
    assert copied == {"LICENSE", "README.md", "pyproject.toml", *packages}
    ignored = (PROJECT / ".containerignore").read_text("utf-8")
    assert {*re.findall(r"^!(.*)$", ignored, re.MULTILINE)} == copied
    assert (PROJECT / ".dockerignore").readlink() == Path(".containerignore")
    user = re.search(r"useradd [^&]*", text)
    assert user is not None
    assert "--shell /usr/sbin/nologin" in user[0]
    assert int(re.findall(r"--uid (\d+)", user[0])[0]) < 1000, "system users are below"


# systemd


def unit() -> ConfigParser:
    parser = ConfigParser(interpolation=None, strict=False)  # SystemCallFilter= is there twice
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser


def test_the_unit_of_several_nodes_on_a_host() -> None:
    """As docs/DEPLOYING.md makes it: each instance has settings and variables of its own."""
    [(old, new)] = re.findall(r"# sed 's\|(.*?)\|(.*?)\|' raftmq\.service >", PAGE)
    text = UNIT.read_text("utf-8")
    changed = [line.replace(old, new) for line in text.splitlines() if old in line]
    assert [line.partition("=")[2] for line in changed] == [
        "/opt/raftmq/bin/raftmq broker --config /etc/raftmq/node-%i.toml",
        "-/etc/raftmq/node-%i.env",
    ]


def test_the_unit_gives_a_node_time_to_stop() -> None:
    """Longer than a stop in order; and what settings forbid is not tried again."""
    service = unit()["Service"]
    assert int(service["TimeoutStopSec"]) > STOP_SECONDS_MAX + FLUSH_SECONDS_MAX
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == "2"
    assert service["KillSignal"] == "SIGTERM"
    assert service["ExecStart"].endswith("raftmq broker --config /etc/raftmq/node.toml")
    assert service["Type"] == "notify"
    assert int(service["TimeoutStartSec"]) > 90 > NOTIFY_SECONDS_MAX, "90: systemd's own limit"
    assert int(service["WatchdogSec"]) > ANSWER_SECONDS_MAX


def test_the_unit_lets_a_node_write_where_its_settings_say() -> None:
    """Everything else is read-only."""
    directories = {load_settings(path).directory for path in DEPLOY.glob("node-*.toml")}
    assert directories == {Path("/var/lib") / unit()["Service"]["StateDirectory"]}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    """Every line of it is known to systemd; the command is another one, which is there."""
    text = UNIT.read_text("utf-8").replace("/opt/raftmq/bin/raftmq", sys.executable)
    copy = tmp_path / UNIT.name
    copy.write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    ours = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, ours) == (0, []), done.stderr


# The page


def typed() -> list[list[str]]:
    """Every call of `raftmq` on the page, as words; the options of a loop end at its `||`."""
    found = re.findall(r"^    (?:\$|#| ) +(raftmq .*)$|`(raftmq\s[^`]*)`", PAGE, re.MULTILINE)
    texts = [block or inline for block, inline in found]
    return [shlex.split(text.partition("||")[0])[1:] for text in texts]


def test_every_command_of_the_page_is_one() -> None:
    """Nouns, verbs and options are those that there are."""
    calls = typed()
    assert len(calls) > 8
    for words in calls:
        context = main.make_context("raftmq", list(words), resilient_parsing=True)
        assert isinstance(context.command, click.Group)
        check_call(context, [*context._protected_args, *context.args])


def check_call(context: click.Context, words: list[str]) -> None:
    name, *rest = words
    assert name in NOUNS, words
    noun = main.commands[name].make_context(name, list(rest), context, resilient_parsing=True)
    command = noun.command
    if isinstance(command, click.Group):
        verb, *rest = [*noun._protected_args, *noun.args]
        assert verb in command.commands, words
        command = command.commands[verb]
    known = {option for one in command.params for option in one.opts}
    assert not {word for word in rest if word.startswith("-")} - known, words


def test_every_file_of_the_page_exists() -> None:
    """And every file of deploy/ is on the page."""
    linked = set(re.findall(r"\]\(\.\./deploy/([^)]+)\)", PAGE))
    assert linked == {path.name for path in DEPLOY.iterdir()}


def test_the_default_ports_are_those_of_the_page() -> None:
    """Whoever opens the ports that the page names lets every connection through."""
    node = load_settings(DEPLOY / "node-1.toml")
    clients, brokers = (one.bind.port for one in node.listeners)
    said = f"{clients} for clients, {node.voters[1].port} for the quorum, {brokers} for the brokers"
    assert said in PAGE
