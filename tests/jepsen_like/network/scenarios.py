"""What happens to real sockets on a lab's network; each returns what it observed, as JSON.

Run by in_lab.py in a process of its own. That something does not arrive is not waited for: a later
message that does arrive, and before which it would have come, shows it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from itertools import permutations
from typing import TYPE_CHECKING, Any

from jepsen_like.network.lab import Lab
from jepsen_like.network.links import NetworkError
from tests.jepsen_like.network.processes import switch_ids
from tests.jepsen_like.network.traffic import echo, name_of_error, open_traffic, send_to

if TYPE_CHECKING:
    import socket

QUIET_SECONDS = 0.3  # longer than the first repetition of a segment takes
TELL_ITS_ID = (
    "import os, socket, sys\n"
    "with socket.create_connection((sys.argv[1], 7000)) as end:\n"
    "    end.sendall(str(os.getpid()).encode())"
)


def everybody_reaches_everybody(lab: Lab) -> Any:
    echoes = {}
    with open_traffic(lab) as traffic:
        for target in lab.links.hosts:
            listener = traffic.listener(target)
            for source in set(lab.links.hosts) - {target}:
                echoes[f"{source}-{target}"] = echo(*traffic.connect(source, listener))
    return echoes


def cut_one_way(lab: Lab) -> Any:
    with open_traffic(lab) as traffic:
        hosts = {host: traffic.datagrams(host) for host in lab.links.hosts}
        lab.links.cut("n1", "n2")
        for source, target in permutations(hosts, 2):
            send_to(hosts[source], hosts[target], source.encode())
        # Commands and frames reach the switch on different ways: it may be told to heal first.
        deadline = time.monotonic() + 10
        while not lab.links.counts().cut and time.monotonic() < deadline:
            time.sleep(0.01)
        lab.links.heal()
        for source, target in permutations(hosts, 2):  # behind what each has sent
            send_to(hosts[source], hosts[target], b"end")
        heard = {host: _hear_all(hosts[host], ends=len(hosts) - 1) for host in hosts}
    return {"heard": heard, "cut": lab.links.counts().cut}


def cut_both_ways_and_heal(lab: Lab) -> Any:
    with open_traffic(lab) as traffic:
        near, far = traffic.connect("n1", traffic.listener("n2"))
        before = echo(near, far)
        lab.links.cut("n1", "n2")
        lab.links.cut("n2", "n1")
        near.sendall(b"late")
        far.settimeout(QUIET_SECONDS)
        during = name_of_error(lambda: far.recv(4))
        lab.links.heal()
        far.settimeout(10)
        after = far.recv(4).decode()
    return {"before": before, "during": during, "after": after}


def cut_clients_from_one_node(lab: Lab) -> Any:
    with open_traffic(lab) as traffic:
        near, far = traffic.connect("clients", traffic.listener("n1"))
        others = [
            traffic.connect("clients", traffic.listener("n2")),
            traffic.connect("n2", traffic.listener("n3")),
        ]
        to_n1 = traffic.connect("n3", traffic.listener("clients"))
        lab.links.cut("clients", "n1")
        lab.links.cut("n1", "clients")
        near.sendall(b"lost")
        far.settimeout(QUIET_SECONDS)
        return {
            "clients-n1": name_of_error(lambda: far.recv(4)),
            "others": [echo(*ends) for ends in (*others, to_n1)],
        }


def delay_of_25_ms(lab: Lab) -> Any:
    """The shortest of some round trips, so that a busy machine does not count."""
    lab.links.shape("n1", "n2", delay_ms=25)
    lab.links.shape("n2", "n1", delay_ms=25)
    with open_traffic(lab) as traffic:
        near, far = traffic.connect("n1", traffic.listener("n2"))
        shaped = min(_time_echo(near, far) for _ in range(10))
        lab.links.heal()
        healed = min(_time_echo(near, far) for _ in range(10))
    return {"shaped_ms": shaped * 1000, "healed_ms": healed * 1000}


def loss_of_a_fifth(lab: Lab) -> Any:
    with open_traffic(lab) as traffic:
        near, far = traffic.connect("n1", traffic.listener("n2"))
        lab.links.shape("n1", "n2", loss=0.2)
        sent = bytes(range(256)) * 4096
        sender = threading.Thread(target=near.sendall, args=(sent,))
        sender.start()
        received = _receive(far, len(sent))
        sender.join()
    return {"is_whole": received == sent, "lost": lab.links.counts().lost}


def jitter_and_duplicates(lab: Lab) -> Any:
    with open_traffic(lab) as traffic:
        near, far = traffic.datagrams("n1"), traffic.datagrams("n2")
        lab.links.shape("n1", "n2", delay_ms=1, jitter_ms=20, duplicate=0.2)
        for number in range(100):
            send_to(near, far, bytes([number]))
        while (counts := lab.links.counts()).delayed < 100 + counts.duplicated:
            pass
        copies = counts.delayed
        return {"copies": copies, "arrived": [far.recv(1)[0] for _ in range(copies)]}


def reset_connections(lab: Lab) -> Any:
    with open_traffic(lab) as traffic:
        listener = traffic.listener("n2")
        idle, talking = (traffic.connect("n1", listener) for _ in range(2))
        other = traffic.connect("clients", listener)
        for ends in (idle, talking, other):
            echo(*ends)
        talking[0].sendall(b"something to read")
        lab.links.reset("n1", "n2", seconds=60)
        refused = name_of_error(lambda: traffic.dial("n1", listener))
        errors = [name_of_error(lambda end=end: end.sendall(b"x")) for end in (*idle, *talking)]
        lab.links.heal()
        again = echo(*traffic.connect("n1", listener))
        return {"errors": errors, "refused": refused, "other": echo(*other), "again": again}


def reset_under_load(lab: Lab) -> Any:
    """Segments are on their way both ways, with delay: numbers are never those of a quiet link."""
    lab.links.shape("n1", "n2", delay_ms=5)
    with open_traffic(lab) as traffic:
        ends = dict(zip(("n1", "n2"), traffic.connect("n1", traffic.listener("n2")), strict=True))
        errors: dict[str, list[str]] = {host: [] for host in ends}
        threads = [
            threading.Thread(target=work, args=(end, errors[host]))
            for host, end in ends.items()
            for work in (_talk_until_error, _hear_until_over)
        ]
        for thread in threads:
            thread.start()
        while lab.links.counts().forwarded < 1000:
            pass
        lab.links.reset("n1", "n2")
        for thread in threads:
            thread.join()
    return errors


def program_on_a_host(lab: Lab) -> Any:
    with open_traffic(lab) as traffic:
        listener = traffic.listener("n2")
        command = [*lab.enter_command(3), sys.executable, "-c", TELL_ITS_ID, lab.address(2)]
        with subprocess.Popen(command) as process:
            far, (address, _) = listener.accept()
            with far:
                said = far.makefile().read()
    return {"from": address, "is_the_process": said == str(process.pid), "ended": process.poll()}


def second_lab(lab: Lab) -> Any:
    try:
        with Lab.open((1,), 0):
            return "opened"
    except NetworkError as error:
        return str(error)


def switch_dies(lab: Lab) -> Any:
    """The switch is killed under the lab: what the next two commands say."""
    _kill_switch()
    said = []
    for _ in range(2):
        try:
            lab.links.cut("n1", "n2")
        except NetworkError as error:
            said.append(str(error))
    return said


def wait_to_be_killed(lab: Lab) -> Any:
    """Tells who it is, starts a program on a host, and waits for ever."""
    print(*switch_ids(), lab.enter_command(1)[1].removeprefix("--net="), flush=True)  # noqa: T201
    threading.Event().wait()


def _hear_all(host: socket.socket, *, ends: int) -> list[str]:
    """What came before the last of so many ends."""
    heard = []
    while ends:
        message = host.recv(99).decode()
        if message == "end":
            ends -= 1
        else:
            heard.append(message)
    return sorted(heard)


def _time_echo(near: socket.socket, far: socket.socket) -> float:
    began_at = time.perf_counter()
    echo(near, far)
    return time.perf_counter() - began_at


def _receive(end: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        received += end.recv(1 << 20)
    return bytes(received)


def _talk_until_error(end: socket.socket, errors: list[str]) -> None:
    while not (error := name_of_error(lambda: end.sendall(bytes(50_000)))):
        pass
    errors.append(error)


def _hear_until_over(end: socket.socket, errors: list[str]) -> None:
    """The kernel tells one thread of the error, and the other only that it is over."""
    try:
        while end.recv(1 << 20):
            pass
    except OSError as error:
        errors.append(type(error).__name__)


def _kill_switch() -> None:
    (process_id,) = switch_ids()
    os.kill(process_id, signal.SIGKILL)
    os.waitid(os.P_PID, process_id, os.WEXITED | os.WNOWAIT)
