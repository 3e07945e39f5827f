"""Which other local cluster has the ports is found out from the processes of this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from raftmq.errors import Unreachable
from raftmq.local.neighbours import clusters_on, opened_by
from raftmq.local.plan import HOST, ClusterPlan
from raftmq.local.ports import keep_free_ports, keep_ports

if TYPE_CHECKING:
    from pathlib import Path

LISTEN = f"""
import socket, sys
with socket.create_server(("{HOST}", int(sys.argv[1]))):
    print("listens", flush=True)
    sys.stdin.read()
"""


def test_another_local_cluster_is_named(tmp_path: Path) -> None:
    """A broker of it listens where ours is to: its folder is named, and the way out of both."""
    (tmp_path / "cluster.json").write_text("{}")
    plan, keepers = keep_free_ports(ClusterPlan(cluster_id="local-1", brokers=1, port=0))
    keepers.close()
    command = [sys.executable, "-c", LISTEN, str(plan.port), "--config", f"{tmp_path}/node-1.toml"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == b"listens\n"
        assert clusters_on([plan.port]) == [tmp_path]
        with pytest.raises(Unreachable) as caught:
            keep_ports(plan)
        broker.communicate()
    assert str(caught.value) == (
        f"in use on {HOST}: port {plan.port} (broker 1 wants it for clients); the local cluster in"
        f" {tmp_path} listens there: stop it with `raftmq dev stop --dir {tmp_path}`, or choose"
        " other ports with --port, 0 for free ones"
    )


def test_another_program_is_none() -> None:
    """This very process listens, which is no broker."""
    with socket.create_server((HOST, 0)) as listener:
        assert clusters_on([listener.getsockname()[1]]) == []
    assert clusters_on([]) == []


def test_a_file_that_is_closed_meanwhile(tmp_path: Path) -> None:
    """The other open files of its process are still looked at."""
    opened = tmp_path / "fd"
    opened.mkdir()
    (opened / "3").touch()  # `readlink` fails, as it does where the link is gone
    (opened / "4").symlink_to("socket:[7]")
    assert list(opened_by(tmp_path)) == ["socket:[7]"]
