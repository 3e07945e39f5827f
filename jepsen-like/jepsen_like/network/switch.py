"""The switch process through which all frames go: `python -m jepsen_like.network.switch PLAN`.

Owns the devices' descriptors and the clock; decides nothing (see fabric.py). Ends when its input
ends, which happens when the harness ends, for any reason and from any thread that started the
switch; the devices vanish with it. Sleeps while no frame comes and none is due.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from random import Random

from jepsen_like.network.commands import Plan, decode_command, decode_plan, encode_line
from jepsen_like.network.devices import MTU_BYTES
from jepsen_like.network.fabric import Fabric
from jepsen_like.network.frames import ETHERNET_BYTES

FRAME_BYTES_MAX = MTU_BYTES + ETHERNET_BYTES
FRAMES_PER_TURN = 16  # of one host, before the others and the commands get their turn
COMMANDS, ANSWERS = 0, 1  # descriptors
URGENCY = -15  # niceness: busy nodes must not make the network slow


class Switch:
    def __init__(self, plan: Plan) -> None:
        self._names = {descriptor: host.name for host, descriptor in plan.ports}
        self._descriptors = {name: descriptor for descriptor, name in self._names.items()}
        hosts = [host for host, _ in plan.ports]
        self._fabric = Fabric(hosts, Random(f"{plan.seed}/switch"), self._send)
        self._poller = select.epoll()
        for descriptor in (COMMANDS, *self._names):
            self._poller.register(descriptor, select.EPOLLIN)
        self._unread = b""  # the beginning of a command

    def run(self) -> None:
        is_told_to_go_on = True
        while is_told_to_go_on:
            for descriptor, _ in self._poller.poll(self._patience_seconds()):
                if descriptor == COMMANDS:
                    is_told_to_go_on = self._obey()
                else:
                    self._receive(descriptor)
            self._fabric.on_time(time.monotonic())

    def _patience_seconds(self) -> float | None:
        due = self._fabric.next_due
        return None if due is None else max(0.0, due - time.monotonic())

    def _receive(self, descriptor: int) -> None:
        source = self._names[descriptor]
        for _ in range(FRAMES_PER_TURN):
            try:
                frame = os.read(descriptor, FRAME_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:  # its namespace ended
                self._poller.unregister(descriptor)
                return
            self._fabric.on_frame(source, frame, time.monotonic())

    def _send(self, target: str, frame: bytes) -> bool:
        try:
            os.write(self._descriptors[target], frame)
        except OSError:  # the device is down
            return False
        return True

    def _obey(self) -> bool:
        """Do what the harness wants, and say so. False: the harness has gone."""
        read = os.read(COMMANDS, 1 << 16)
        *lines, self._unread = (self._unread + read).split(b"\n")
        for line in lines:
            counts = self._fabric.on_command(decode_command(line), time.monotonic())
            with suppress(BrokenPipeError):
                os.write(ANSWERS, encode_line(counts))
        return bool(read)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the harness needs a network while it ends
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, URGENCY)
    Switch(decode_plan(sys.argv[1])).run()


if __name__ == "__main__":
    main()
