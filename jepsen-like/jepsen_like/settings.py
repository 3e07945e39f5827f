"""The settings of a run: workload, faults, seed, sizes; and the command that repeats it. Pure."""

from __future__ import annotations

import math

import msgspec

from jepsen_like.nemesis.kinds import KINDS, parts

WORKLOADS = ("queue", "metadata", "groups", "reruns", "transactions", "schedule", "retries")
ACKS = ("all", "1", "2")
NODES = (3, 5)


class BadSettings(Exception):
    """A run that cannot be: names what is wrong and what there is instead."""


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Attributes:
    nemesis: kinds of faults, as people type them; none: a quiet run.
    time_limit: seconds for which faults strike.
    acks: of the topics, as a matrix: each topic has one of them.
    processes: clients that do one thing after the other.
    rate: operations a second of all of these together, at most.
    pace: seconds between faults, on the average.
    whom: roles that alone are hit, as people type them; none: all that a kind knows.
    fault_events: 0: faults as the seed draws them; else so many of each kind, in turn.
    """

    workload: str = "queue"
    nemesis: tuple[str, ...] = ()
    time_limit: float = 60.0
    seed: int = 0
    nodes: int = 3
    acks: tuple[str, ...] = ACKS
    processes: int = 6
    rate: float = 60.0
    pace: float = 4.0
    whom: tuple[str, ...] = ()
    fault_events: int = 0

    def check(self) -> None:
        """
        Raises:
            BadSettings: with all that is wrong.
        """
        problems = [
            problem
            for problem in (
                _choice("workload", self.workload, WORKLOADS),
                *(_choice("acks", acks, ACKS) for acks in self.acks or ("",)),
                "" if self.nodes in NODES else f"nodes = {self.nodes}: expected 3 or 5",
                *(_positive(name, getattr(self, name)) for name in _POSITIVE),
                ""
                if self.fault_events >= 0
                else f"fault_events = {self.fault_events}: expected 0 or more",
                *(self._nobody_hit(kind) for kind in self.nemesis if self.whom),
                "fault events of what? name them with --nemesis"
                if self._are_events_unnamed
                else "",
            )
            if problem
        ]
        if problems:
            raise BadSettings("; ".join(problems))

    def _nobody_hit(self, kind: str) -> str:
        known = parts([kind])
        told = f"whom = {','.join(self.whom)}: {kind} hits {', '.join(known)}"
        return "" if known.keys() & set(self.whom) else told

    @property
    def _are_events_unnamed(self) -> bool:
        return self.fault_events > 0 and not self.nemesis

    @property
    def command(self) -> str:
        """Repeats the run. The seed decides which fault comes when; timing of processes differs."""
        shown = (
            (name, getattr(self, name))
            for name in self.__struct_fields__
            if name in _ALWAYS_SHOWN or getattr(self, name) != _DEFAULTS[name]
        )
        options = (f"--{name.replace('_', '-')} {_typed(value)}" for name, value in shown)
        return " ".join(["python jepsen-like run", *options])


_ALWAYS_SHOWN = ("workload", "seed", "nodes")
_POSITIVE = ("time_limit", "processes", "rate", "pace")
_DEFAULTS = msgspec.structs.asdict(RunSettings())


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    return "" if value in choices else f"{name} = {value!r}: expected one of {', '.join(choices)}"


def _positive(name: str, value: float) -> str:
    is_fit = value > 0 and math.isfinite(value)
    return "" if is_fit else f"{name} = {value:g}: expected more than 0, and an end"


def _typed(value: object) -> str:
    """As people type it."""
    if isinstance(value, tuple):
        return "all" if set(value) == set(KINDS) else ",".join(value)
    return f"{value:g}" if isinstance(value, float) else f"{value}"
