"""A network of the real kernel: what sockets on its hosts see while it is broken, and its end."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jepsen_like.network.devices import list_up
from jepsen_like.network.namespaces import in_namespace
from jepsen_like.network.probe import lab_missing
from tests.jepsen_like.network import scenarios
from tests.jepsen_like.network.in_lab import (
    ROOT,
    lab_command,
    lab_environment,
    run_in_lab,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.powercut

HOSTS = ("n1", "n2", "n3", "clients")
PATIENCE_SECONDS = 20.0
MOUNT_SOMETHING = """
import os, subprocess, sys
from jepsen_like.network.namespaces import unshare_here
if not os.fork():
    unshare_here()
    subprocess.run(["mount", "-t", "tmpfs", "none", sys.argv[1]], check=True)
    open(sys.argv[1] + "/seen", "w").close()
    os._exit(0)
print(os.wait()[1], os.path.ismount(sys.argv[1]))
"""
UNSHARE_TOO_LATE = """
import threading
from jepsen_like.network.namespaces import unshare_here
threading.Thread(target=threading.Event().wait, daemon=True).start()
try:
    unshare_here()
except AssertionError as error:
    print(error)
"""


@pytest.fixture(autouse=True)
def _needs_a_lab() -> None:
    if lab_missing():
        pytest.skip(lab_missing())


def test_everybody_reaches_everybody() -> None:
    """Nothing is broken: an echo over TCP between any two hosts, clients included."""
    echoes = run_in_lab(scenarios.everybody_reaches_everybody)
    assert echoes == {f"{one}-{other}": "ping" for one, other in permutations(HOSTS, 2)}


def test_cut_one_way() -> None:
    """n1 to n2 is cut: of the datagrams between all hosts, just that one is missing."""
    observed = run_in_lab(scenarios.cut_one_way)
    heard = {host: sorted(set(HOSTS) - {host}) for host in HOSTS}
    heard["n2"].remove("n1")
    assert observed == {"heard": heard, "cut": 1}


def test_cut_both_ways_and_heal() -> None:
    """A connection lives through a cut: silence, and after healing what was sent meanwhile."""
    observed = run_in_lab(scenarios.cut_both_ways_and_heal)
    assert observed == {"before": "ping", "during": "TimeoutError", "after": "late"}


def test_cut_clients_from_one_node() -> None:
    """Clients and n1 are cut: clients reach n2, n1 is among its own, others hear clients."""
    observed = run_in_lab(scenarios.cut_clients_from_one_node)
    assert observed == {"clients-n1": "TimeoutError", "others": ["ping"] * 3}


def test_delay() -> None:
    """25 ms each way: a round trip takes 50, and next to nothing once it is healed."""
    observed = run_in_lab(scenarios.delay_of_25_ms)
    assert 50 <= observed["shaped_ms"] < 75
    assert observed["healed_ms"] < 25


def test_loss() -> None:
    """A fifth of all frames is lost: TCP delivers a mebibyte nevertheless."""
    observed = run_in_lab(scenarios.loss_of_a_fifth)
    assert observed["is_whole"]
    assert observed["lost"] > 0


def test_jitter_and_duplicates() -> None:
    """Datagrams under jitter: all arrive, some of them twice, and not in order."""
    observed = run_in_lab(scenarios.jitter_and_duplicates)
    assert observed["copies"] > 100
    assert sorted(set(observed["arrived"])) == list(range(100))
    assert observed["arrived"] != sorted(observed["arrived"])


def test_reset() -> None:
    """Two connections, an idle one and one with unread bytes: all four ends are told at once.

    New ones are refused until it is healed; a connection with another host lives.
    """
    observed = run_in_lab(scenarios.reset_connections)
    assert observed == {
        "errors": ["ConnectionResetError"] * 4,
        "refused": "ConnectionRefusedError",
        "other": "ping",
        "again": "ping",
    }


def test_reset_under_load() -> None:
    """Both ends send as much as they can, over a slow link: both are told of the reset."""
    errors = run_in_lab(scenarios.reset_under_load)
    assert "ConnectionResetError" in errors["n1"]
    assert "ConnectionResetError" in errors["n2"]


def test_program_on_a_host() -> None:
    """A program is started on n3: it talks from there, and it is the process that was started."""
    observed = run_in_lab(scenarios.program_on_a_host)
    assert observed == {"from": "10.77.0.3", "is_the_process": True, "ended": 0}


def test_network_that_is_not_ones_own() -> None:
    """A lab on a network that has devices already: refused, and said what to do."""
    said = run_in_lab(scenarios.second_lab)
    assert "eth0" in said
    assert "unshare_here()" in said


def test_switch_dies() -> None:
    """The switch is gone: each command fails and says so, none is taken for done."""
    said = run_in_lab(scenarios.switch_dies)
    assert len(said) == 2
    assert all("Cut(source='n1', target='n2')" in line for line in said)


def test_mounts_are_private(tmp_path: Path) -> None:
    """Where mounts spread to all, a process that has unshared mounts something: nobody sees it."""
    shared = ["unshare", "--mount", "--propagation", "shared"]
    command = [*shared, sys.executable, "-c", MOUNT_SOMETHING, str(tmp_path)]
    seen = subprocess.run(command, check=True, env=lab_environment(), capture_output=True)
    assert seen.stdout.split() == [b"0", b"False"]


def test_unshare_after_a_thread_began() -> None:
    """A thread is there already, and would stay on the old network: refused."""
    command = [sys.executable, "-c", UNSHARE_TOO_LATE]
    said = subprocess.run(command, check=True, env=lab_environment(), capture_output=True)
    assert b"other threads" in said.stdout


@pytest.fixture
def harness() -> Iterator[subprocess.Popen[str]]:
    """A process that has a lab, and waits."""
    with subprocess.Popen(
        lab_command(scenarios.wait_to_be_killed),
        cwd=ROOT,
        env=lab_environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def test_nothing_is_left_of_a_harness_that_was_killed(harness: subprocess.Popen[str]) -> None:
    """SIGKILL: the switch ends, and its devices vanish even from namespaces that live on."""
    assert harness.stdout is not None
    switch_id, namespace = harness.stdout.readline().split()
    switch = os.pidfd_open(int(switch_id))
    networks = [os.open(path, os.O_RDONLY) for path in (namespace, f"/proc/{harness.pid}/ns/net")]
    assert [in_namespace(network, list_up) for network in networks] == [["lo", "eth0"]] * 2
    harness.kill()
    harness.wait()
    assert select.select([switch], [], [], PATIENCE_SECONDS)[0], "the switch lives"
    assert [in_namespace(network, list_up) for network in networks] == [["lo"]] * 2
    for descriptor in (switch, *networks):
        os.close(descriptor)


def test_this_process_stays_where_it_is() -> None:
    """Whoever asks for a lab is not moved by the answer."""
    before = [Path(f"/proc/self/ns/{kind}").readlink() for kind in ("net", "mnt")]
    lab_missing.cache_clear()
    assert lab_missing() == ""
    assert before == [Path(f"/proc/self/ns/{kind}").readlink() for kind in ("net", "mnt")]
