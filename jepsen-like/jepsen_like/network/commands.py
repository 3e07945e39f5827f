"""The protocol between harness and switch: commands and answers as JSON lines on two pipes.

Every command is answered by one `Counts`, and only after it holds; so a command that changes
nothing is a question.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from jepsen_like.network.hosts import Host  # noqa: TC001  # msgspec reads the annotations
from jepsen_like.network.rules import Shape  # noqa: TC001  # likewise


class Cut(msgspec.Struct, frozen=True, tag="cut"):
    source: str
    target: str


class ShapeLink(msgspec.Struct, frozen=True, tag="shape"):
    source: str
    target: str
    shape: Shape


class Reset(msgspec.Struct, frozen=True, tag="reset"):
    one: str
    other: str
    seconds: float


class Heal(msgspec.Struct, frozen=True, tag="heal"):
    pass


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Changes nothing."""


Command: TypeAlias = Cut | ShapeLink | Reset | Heal | Ask


class Counts(msgspec.Struct):
    """Frames since the switch began, by what became of them.

    Attributes:
    commands: no frames, but how many commands hold: to which of them this is the answer.
    forwarded: written to a device, RSTs of the switch not among them.
    cut: dropped by a cut, those in flight included.
    lost: dropped by chance.
    delayed: held back for some time.
    duplicated: sent twice, counted once.
    refused: TCP segments answered by RSTs.
    resets: RSTs that the switch made.
    overflowed: dropped because too much was in flight.
    stray: for no host of this network, or refused by the device.
    """

    commands: int = 0
    forwarded: int = 0
    cut: int = 0
    lost: int = 0
    delayed: int = 0
    duplicated: int = 0
    refused: int = 0
    resets: int = 0
    overflowed: int = 0
    stray: int = 0


class Plan(msgspec.Struct, frozen=True):
    """How a switch begins: its hosts, the descriptor of each one's device, the seed of chance."""

    ports: tuple[tuple[Host, int], ...]
    seed: int


decode_command = msgspec.json.Decoder(Command).decode
decode_counts = msgspec.json.Decoder(Counts).decode
decode_plan = msgspec.json.Decoder(Plan).decode
_encode = msgspec.json.Encoder().encode


def encode_line(message: Command | Counts) -> bytes:
    return _encode(message) + b"\n"


def encode_plan(plan: Plan) -> str:
    return _encode(plan).decode()
