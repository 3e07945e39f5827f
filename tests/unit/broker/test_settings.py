"""The settings of a node: a whole file, and every problem of a bad one at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftmq.broker.groups.phases import CoordinatorSettings
from raftmq.broker.settings import (
    BROKERS,
    BrokerSettings,
    SettingOrigin,
    parse_settings,
    read_settings,
)
from raftmq.cli.nodes.overrides import override
from raftmq.errors import InvalidConfig
from raftmq.model import Address

GOOD = """
[node]
id = 1
cluster_id = "orders"
directory = "/var/raftmq"
rack = "a"

[quorum.voters]
1 = "10.0.0.1:9293"
2 = "[2001:db8::2]:9293"

[[listeners]]
name = "clients"
bind = "0.0.0.0:9292"
advertised = "broker1:9292"

[[listeners]]
name = "brokers"
bind = "10.0.0.1:9294"
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def load_settings(path: Path) -> BrokerSettings:
    return parse_settings(read_settings(path))


def test_a_whole_file(tmp_path: Path) -> None:
    """Everything that can be said, said; what is advertised defaults to what is bound."""
    settings = load_settings(write(tmp_path / "node.toml", GOOD))
    assert (settings.node_id, settings.cluster_id, settings.rack) == (1, "orders", "a")
    assert settings.directory == Path("/var/raftmq")
    assert settings.voters == {1: Address("10.0.0.1", 9293), 2: Address("2001:db8::2", 9293)}
    clients, brokers = settings.listeners
    assert (clients.name, clients.advertised) == ("clients", Address("broker1", 9292))
    assert not settings.listener(clients).is_for_brokers
    assert (brokers.name, brokers.advertised) == (BROKERS, Address("10.0.0.1", 9294))
    assert settings.listener(brokers).is_for_brokers
    assert settings.listener(brokers).clients_at == "listener 'clients' at broker1:9292"
    assert not settings.listener(clients).clients_at
    assert settings.is_voter


def test_groups(tmp_path: Path) -> None:
    """What is left out is what it always was; the rest is what was said."""
    plain = load_settings(write(tmp_path / "plain.toml", GOOD)).groups
    assert plain == CoordinatorSettings()
    text = GOOD + "\n[groups]\ninitial_rebalance_delay_ms = 0\noffsets_retention_ms = 60000\n"
    said = load_settings(write(tmp_path / "said.toml", text)).groups
    assert said.rules.initial_rebalance_delay_ms == 0
    assert said.rules.size_max == plain.rules.size_max
    assert said.offsets_retention_ms == 60_000


def test_how_long_transactions_may_be_open(tmp_path: Path) -> None:
    """A quarter of an hour, unless something else is said, of a second at least."""
    plain = load_settings(write(tmp_path / "plain.toml", GOOD))
    assert plain.transaction_timeout_ms_max == 900_000
    text = GOOD + "\n[transactions]\ntimeout_ms_max = 60000\n"
    assert load_settings(write(tmp_path / "said.toml", text)).transaction_timeout_ms_max == 60_000
    with pytest.raises(InvalidConfig, match=r"transactions.timeout_ms_max = 999: expected"):
        load_settings(write(tmp_path / "short.toml", text.replace("60000", "999")))


def test_how_fast_replicas_are_copied(tmp_path: Path) -> None:
    """50 MB/s, unless something else is said; 0 is no limit, and a little is refused.

    A10.2.
    """
    plain = load_settings(write(tmp_path / "plain.toml", GOOD))
    assert plain.reassignment_bytes_per_second == 50_000_000
    text = GOOD + "\n[reassignment]\nbytes_per_second = 0\n"
    assert load_settings(write(tmp_path / "said.toml", text)).reassignment_bytes_per_second == 0
    slow = text.replace("= 0", "= 655360")
    assert load_settings(write(tmp_path / "slow.toml", slow)).reassignment_bytes_per_second > 0
    for value in ("-1", "1", "655359", '"50 MB"', "2.5"):
        [problem] = problems_of(text.replace("= 0", f"= {value}"), tmp_path)
        assert problem.startswith("reassignment.bytes_per_second = ")
        assert "expected 0, or a whole number from 655360 to" in problem


def test_how_far_apart_clocks_may_be(tmp_path: Path) -> None:
    """Five minutes, unless something else is said, which is not too little for a slow message."""
    text = GOOD.replace("[node]", "[node]\nclock_difference_ms_max = 20000")
    plain, said = write(tmp_path / "plain.toml", GOOD), write(tmp_path / "said.toml", text)
    assert load_settings(plain).clock_difference_ms_max == 300_000
    assert load_settings(said).clock_difference_ms_max == 20_000
    [problem] = problems_of(text.replace("20000", "9999"), tmp_path)
    assert problem.startswith("node.clock_difference_ms_max = 9999: expected a whole number from")


def test_problems_of_groups(tmp_path: Path) -> None:
    """A group of nobody, a name that is misspelt, and sessions that nobody could have."""
    text = GOOD + "\n[groups]\nsize_max = 0\nsize_min = 1\nsession_timeout_ms_max = 5\n"
    assert problems_of(text, tmp_path) == [
        "groups.size_min: unknown, did you mean groups.size_max?",
        "groups.size_max = 0: expected a whole number from 1 to 1000",
        "groups.session_timeout_ms_min = 6000: above groups.session_timeout_ms_max = 5, so that no"
        " session would do",
    ]
    assert problems_of("groups = 1\n" + GOOD, tmp_path) == [
        "groups = 1: expected a section [groups]"
    ]


def problems_of(text: str, path: Path) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        load_settings(write(path / "node.toml", text))
    return caught.value.problems


def test_a_replacement(tmp_path: Path) -> None:
    """False unless said, in the file or above it; anything but true and false is a mistake."""
    said = GOOD.replace("[quorum.voters]", "[quorum]\nreplace = true\n[quorum.voters]")
    assert not load_settings(write(tmp_path / "plain.toml", GOOD)).is_replacement
    assert load_settings(write(tmp_path / "said.toml", said)).is_replacement
    values = read_settings(tmp_path / "plain.toml")
    origins = dict[str, SettingOrigin]()
    override(values, ["quorum.replace=true"], origins)
    assert parse_settings(values, origins).is_replacement
    assert problems_of(said.replace("true", '"yes"'), tmp_path) == [
        "quorum.replace = 'yes': expected true or false, without quotes"
    ]


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    """Five mistakes are five lines, each with its key; what is misspelt is not missing as well."""
    text = (
        GOOD.replace("id = 1", 'id = "1"')
        .replace("cluster_id", "clusterid")
        .replace("rack = ", "rakc = ")
        .replace("10.0.0.1:9293", "x")
        .replace('name = "brokers"', 'name = "Brokers"')
    )
    assert problems_of(text, tmp_path) == [
        "node.clusterid: unknown, did you mean node.cluster_id?",
        "node.rakc: unknown, did you mean node.rack?",
        "node.id = '1': expected a whole number from 0 to 2147483647",
        "quorum.voters.1 = 'x': no port; write host:port",
        "listeners.Brokers.name = 'Brokers': expected a name of 1 to 32 characters a-z, 0-9, _ and"
        " -, a letter first",
    ]


NEEDED = "a whole number from 0 to 2147483647"


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("id = 1\n", "", f"node.id: missing, expected {NEEDED}"),
        ("id = 1\n", "id = -1\n", f"node.id = -1: expected {NEEDED}"),
        ("id = 1\n", "id = 2147483648\n", f"node.id = 2147483648: expected {NEEDED}"),
        ("id = 1\n", "id = true\n", f"node.id = True: expected {NEEDED}"),
        (
            '"orders"',
            '""',
            "node.cluster_id = '': expected a text of 1 to 255 printable characters",
        ),
        (
            '"orders"',
            "7",
            "node.cluster_id = 7: expected a text of 1 to 255 printable characters, in quotes",
        ),
        (
            '"orders"',
            '"orders "',
            "node.cluster_id = 'orders ': expected printable characters, and no space at either"
            " end",
        ),
        ('"/var/raftmq"', "1", "node.directory = 1: expected a path"),
        (
            '"/var/raftmq"',
            '"~/raftmq"',
            "node.directory = '~/raftmq': only shells know what ~ is, write the whole path",
        ),
        ("[node]", "[nodes]", "[nodes]: unknown section, did you mean [node]?"),
        (
            "[node]",
            "[[node]]",
            "node = [{'id': 1, 'cluster_id': 'orders', 'directory': '/var/raf...:"
            " expected a section [node]",
        ),
        ("[quorum.voters]", "[quorum.voter]", "quorum.voter: unknown, did you mean quorum.voters?"),
        (
            "[node]",
            "rack = 1\n[node]",
            "rack: unknown, and in no section, did you mean node.rack, in its section?",
        ),
        ("1 = ", "one = ", f"quorum.voters.one: 'one' is no node id, expected {NEEDED}"),
        ("1 = ", "01 = ", f"quorum.voters.01: '01' is no node id, expected {NEEDED}"),
        (
            "[2001:db8::2]",
            "10.0.0.1",
            "quorum.voters.2 = 10.0.0.1:9293: that is voter 1's address, each has its own",
        ),
        (
            "[2001:db8::2]",
            "[::]",
            "quorum.voters.2 = [::]:9293: no client can connect to that address, say"
            " where voter 2 is reached",
        ),
        (
            'bind = "10.0.0.1:9294"',
            "",
            'listeners.brokers.bind: missing, expected "host:port"',
        ),
        (
            'bind = "10.0.0.1:9294"',
            'bind = "10.0.0.1:9293"',
            "quorum.voters.1 = 10.0.0.1:9293: listeners.brokers.bind = 10.0.0.1:9293 listens there"
            " already, give each a port of its own",
        ),
        (
            'bind = "10.0.0.1:9294"',
            'bind = "10.0.0.1:9292"',
            "listeners.brokers.bind = 10.0.0.1:9292: listeners.clients.bind = 0.0.0.0:9292 listens"
            " there already, give each a port of its own",
        ),
        (
            'advertised = "broker1:9292"',
            "",
            "listeners.clients.advertised = 0.0.0.0:9292: no client can connect to that"
            " address, say where others reach this node",
        ),
        (
            '"brokers"',
            '"others"',
            'listeners: exactly one must be named "brokers", for the other'
            " brokers, here are clients, others",
        ),
        ('"clients"', '"brokers"', "listeners: names must differ, 'brokers' is there 2 times"),
        (
            'bind = "10.0.0.1:9294"',
            'bin = "10.0.0.1:9294"',
            "listeners.brokers.bin: unknown, did you mean listeners.brokers.bind?",
        ),
        (
            'name = "clients"',
            "",
            "listeners[0].name: missing, expected a name of 1 to 32 characters a-z, 0-9, _ and -, a"
            " letter first",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, before: str, after: str, problem: str) -> None:
    """One mistake is one line: its key, its value, and what was expected or meant."""
    assert before in GOOD
    assert problems_of(GOOD.replace(before, after), tmp_path) == [problem]


def test_brokers_need_no_clients(tmp_path: Path) -> None:
    """A node may listen for other brokers alone."""
    clients, rest = GOOD.index("[[listeners]]"), GOOD.rindex("[[listeners]]")
    settings = load_settings(write(tmp_path / "node.toml", GOOD[:clients] + GOOD[rest:]))
    assert [one.name for one in settings.listeners] == [BROKERS]
    assert settings.listener(settings.listeners[0]).clients_at == ""  # whoever comes is served


def test_a_section_that_is_missing(tmp_path: Path) -> None:
    """Of an empty file it is said once for each section, not for each key in it."""
    assert problems_of("", tmp_path) == [
        "[node]: this section is missing",
        "[quorum]: this section is missing",
        "[[listeners]]: this section is missing",
    ]


@pytest.mark.parametrize(
    ("data", "told"),
    [(b"[node", "is no TOML: Expected ']'"), (b"\xff", "is no text in UTF-8: ")],
)
def test_what_is_no_toml(tmp_path: Path, data: bytes, told: str) -> None:
    """The file is named, and where in it."""
    path = tmp_path / "node.toml"
    path.write_bytes(data)
    with pytest.raises(InvalidConfig) as caught:
        load_settings(path)
    assert str(caught.value).startswith(f"{path}: {told}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The path stands in the message; a directory is no file either."""
    path = tmp_path / "no-such-file"
    with pytest.raises(InvalidConfig) as caught:
        load_settings(path)
    assert str(caught.value) == f"{path}: there is no such file, name one with --config"
    with pytest.raises(InvalidConfig, match=f"{tmp_path}: cannot be read: Is a directory"):
        load_settings(tmp_path)


@pytest.mark.parametrize("listeners", ["0.0.0.0:1", {"clients": {}}])
def test_listeners_must_be_a_list(listeners: object) -> None:
    """A text, or a section for each, in place of a list of tables."""
    with pytest.raises(InvalidConfig) as caught:
        parse_settings({"node": {}, "quorum": {}, "listeners": listeners})
    assert r"[[listeners]]: expected [[listeners]], once for each" in caught.value.problems


@pytest.mark.parametrize(
    ("count", "warned"),
    [
        (1, ["quorum.voters: a single voter: while it is down nothing can change, and with its disk"
             " the cluster is lost; three are safe"]),
        (2, ["quorum.voters: 2 voters, an even number: none may be down, which 1 would allow as"
             " well; take 1 or 3"]),
        (3, []),
        (4, ["quorum.voters: 4 voters, an even number: 1 may be down, which 3 would allow as well;"
             " take 3 or 5"]),
        (5, []),
    ],
)  # fmt: skip
def test_numbers_of_voters_that_are_unwise(count: int, warned: list[str]) -> None:
    """They work, and are warned of."""
    voters = {str(voter): f"host{voter}:9293" for voter in range(1, count + 1)}
    node = {"id": 1, "cluster_id": "a", "directory": "/a"}
    listeners = [{"name": BROKERS, "bind": "host1:9294"}]
    settings = parse_settings({"node": node, "quorum": {"voters": voters}, "listeners": listeners})
    assert settings.warnings == warned


@pytest.mark.parametrize(
    ("hosts", "told"),
    [
        (["a", "b", "A."], "1 and 3 are on one host, a, and fail together"),
        (["10.0.0.1"] * 3, "1 and 2 and 3 are on one host, 10.0.0.1, and fail together"),
        (["127.0.0.1", "127.0.0.1", "localhost"], None),
        (["a", "b", "c"], None),
    ],
)
def test_voters_of_one_host(hosts: list[str], told: str | None) -> None:
    """Warned of, unless all is on one machine, which loopback addresses tell (A13.3)."""
    voters = {str(at): f"{host}:{9293 + at}" for at, host in enumerate(hosts, 1)}
    node = {"id": 1, "cluster_id": "a", "directory": "/a"}
    listeners = [{"name": BROKERS, "bind": "host1:9290"}]
    settings = parse_settings({"node": node, "quorum": {"voters": voters}, "listeners": listeners})
    way_out = "; give each voter a host of its own"
    assert settings.warnings == ([f"quorum.voters: {told}{way_out}"] if told else [])


def test_too_many_voters() -> None:
    """A greeting has room for 99 of them."""
    voters = {str(voter): f"host{voter}:9293" for voter in range(100)}
    with pytest.raises(InvalidConfig) as caught:
        parse_settings({"node": {}, "quorum": {"voters": voters}, "listeners": []})
    assert "quorum.voters: 100 of them, allowed are 99; take three or five" in caught.value.problems


def test_which_setting_an_address_comes_from(tmp_path: Path) -> None:
    """Whoever cannot listen somewhere wants to know where that is written."""
    settings = load_settings(write(tmp_path / "node.toml", GOOD))
    assert settings.key_of(Address("0.0.0.0", 9292)) == "listeners.clients.bind"
    assert settings.key_of(Address("10.0.0.1", 9293)) == "quorum.voters.1"
