"""Named clusters: which one is meant, and what is wrong with their file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from raftmq.cli.main import main
from tests.unit.client.administration.served import serve_bureau

if TYPE_CHECKING:
    from pathlib import Path

    from raftmq.rpc.context import RequestContext


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of profiles, which is not there yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("RAFTMQ_BOOTSTRAP", raising=False)
    (tmp_path / "raftmq").mkdir()
    return tmp_path / "raftmq" / "profiles.toml"


def run(line: str) -> Result:
    return CliRunner().invoke(main, line.split())


def test_which_cluster_is_asked(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is typed counts before what the environment says, -b before --profile."""
    with serve_bureau() as (_, address):
        file.write_text(
            f'[here]\nbootstrap = "{address}"\nclient_id = "ops"\n'
            '[gone]\nbootstrap = "127.0.0.1:1"\n'
        )
        assert run("--profile here topic list").exit_code == 0
        assert run("--profile gone topic list --timeout 1").exit_code == 5
        assert run(f"--profile gone topic list -b {address}").exit_code == 0
        assert run(f"--profile gone -b {address} topic list").exit_code == 0
        monkeypatch.setenv("RAFTMQ_PROFILE", "here")
        assert run("topic list").exit_code == 0
        monkeypatch.setenv("RAFTMQ_BOOTSTRAP", "127.0.0.1:1")
        assert run("topic list --timeout 1").exit_code == 5
        assert run("--profile here topic list").exit_code == 0


def test_what_brokers_call_the_commands(file: Path) -> None:
    """By the client id of the profile, else all by the same name."""
    client_ids: list[str] = []

    def note(context: RequestContext, _body: object) -> None:
        client_ids.append(context.client_id)

    with serve_bureau(lambda bureau: setattr(bureau.world.brokers[1], "_note", note)) as (_, at):
        file.write_text(f'[a]\nbootstrap = "{at}"\nclient_id = "ops"\n[b]\nbootstrap = "{at}"\n')
        assert run("--profile a topic list").exit_code == 0
        assert set(client_ids) == {"ops"}
        client_ids.clear()
        assert run("--profile b topic list").exit_code == 0
        assert set(client_ids) == {"raftmq-cli"}


def test_a_profile_without_addresses(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has only a client id: the cluster of the environment is asked, not the default one."""
    file.write_text('[ops]\nclient_id = "ops"\n')
    with serve_bureau() as (_, address):
        monkeypatch.setenv("RAFTMQ_BOOTSTRAP", str(address))
        assert run("--profile ops topic list").exit_code == 0


def test_examples_can_be_copied(file: Path) -> None:
    """What the help shows, and what the refusal of a wrong table shows, is TOML."""
    (example,) = [one.strip() for one in run("profile --help").stdout.splitlines() if "= {" in one]
    file.write_text(example)
    row = json.loads(run("profile list -o json").stdout)
    assert row == {
        "name": "production", "bootstrap": "host1:9292,host2:9292", "client_id": "ops",
    }  # fmt: skip
    file.write_text('prod = "h:1"')
    first = run("profile list").stderr.splitlines()[0]  # a warning; the number comes last
    file.write_text(first.partition(", like ")[2])
    assert json.loads(run("profile list -o json").stdout)["bootstrap"] == "host:9292"


def test_the_list(file: Path) -> None:
    """By name, and where it stands; nothing if there is no file."""
    assert run("profile list").stderr == f"raftmq: 0 in {file}\n"
    file.write_text('[b]\nclient_id = "ops"\n[a]\nbootstrap = "h:1"\n')
    rows = [json.loads(line) for line in run("profile list -o json").stdout.splitlines()]
    assert rows == [
        {"name": "a", "bootstrap": "h:1", "client_id": None},
        {"name": "b", "bootstrap": None, "client_id": "ops"},
    ]
    assert run("profile list").stdout.splitlines()[1].split() == ["a", "h:1", "-"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no profile 'prod' in {file}: it has no profiles"),
        ('[test]\nbootstrap = "h:1"', "no profile 'prod' in {file}: there are test"),
        ("[prod", "{file}: "),
        ('[prod]\nbootstrp = "h:1"', "{file}: prod.bootstrp: unknown key, did you mean 'boot"),
        ("[prod]\nbootstrap = 1", "{file}: prod.bootstrap = 1: expected a text"),
        ('prod = "h:1"', "{file}: prod = ...: expected a table"),
        ('[prod]\nbootstrap = "h"', "Invalid value for --profile prod: address 'h': no port"),
    ],
)
def test_what_is_wrong(file: Path, text: str, told: str) -> None:
    """One line, exit code 2: it names the file, the profile and the key."""
    file.write_text(text)
    result = run("--profile prod topic list")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"raftmq: {told.format(file=file)}")


def test_a_wrong_profile_beside_others(file: Path) -> None:
    """Only the one that is wrong is refused; the list warns of it and shows the others."""
    with serve_bureau() as (_, address):
        file.write_text(f'[here]\nbootstrap = "{address}"\n[test]\nbootstrp = "h:1"\n')
        assert run("--profile here topic list").exit_code == 0
    assert run("--profile test topic list").exit_code == 2
    listed = run("profile list")
    assert (listed.exit_code, "test.bootstrp: unknown key" in listed.stderr) == (0, True)
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["profile", "here"]
