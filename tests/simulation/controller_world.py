"""The world of the controller under virtual time: model brokers, real controller and `apply`.

Owns the clock, the quorum (one image, through the real `apply`), the terms of controllers, and
the faults. Every committed command goes through the invariants of `apply`. Proposals are lost,
answered as uncertain, and come late; a deposed controller goes on for a while.

    python -m tests.simulation.controller_world --seeds 1000        many worlds
    python -m tests.simulation.controller_world --seed N --trace    one world, line by line
"""

from __future__ import annotations

import argparse
import sys
import traceback
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import TYPE_CHECKING

from raftmq.metadata.apply import apply
from raftmq.metadata.commands import (
    NO_BROKER,
    SUPPORTED_LEVEL,
    ElectionKind,
    ElectLeader,
    RecoveryState,
    UnfenceBroker,
    decode_command,
    encode_command,
)
from raftmq.metadata.controller import Controller, ProbeBroker, ProbeOutcome
from raftmq.metadata.controller.controller import TICK_SECONDS
from raftmq.metadata.image import EMPTY_IMAGE, ChangeKind, Pending
from raftmq.metadata.liveness import SESSION_SECONDS
from tests.metadata_invariants import check, check_step
from tests.simulation.controller_broker import SimulatedBroker
from tests.simulation.controller_faults import (
    BrokerFaults,
    ControllerFaults,
    ControllerNemesis,
    UserRequests,
)
from tests.simulation.controller_moves import MovesJudge

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raftmq.metadata.commands import AnyCommand, AnyResult
    from raftmq.metadata.controller import Effect, HeartbeatAnswer, ProposeCommand
    from raftmq.metadata.liveness import BrokerContact

CALM_START_SECONDS = 4.0  # for all brokers to register
TROUBLE_SECONDS = 35.0  # of faults: several sessions
HEALING_SECONDS = 45.0  # a session, a thaw, reviews, and shutdowns that wait for each other
QUIET_SECONDS = 5.0
FAST_SECONDS = 0.5  # two probes, a fence and a review


class World:
    """Attributes:
    image: what the quorum has committed; every node sees it at once.
    is_calm: nothing is lost, and followers catch up.
    commits: how many commands of each class were committed.
    """

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.random = Random(seed)
        self._trace = trace
        self.now, self.image, self.is_calm = 0.0, EMPTY_IMAGE, True
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self.commits: dict[str, int] = {}
        self._controller: Controller | None = None
        self._proposed = 0  # by controllers
        self._heard: set[tuple[int, int]] = set()  # broker and epoch, by the one in office
        self.moves = MovesJudge()
        self.controller_paused_until = 0.0
        self.brokers = [SimulatedBroker(self, number) for number in range(self._size())]
        self.users = UserRequests(self)
        self.nemesis = ControllerNemesis(
            self, BrokerFaults(self).faults, ControllerFaults(self).faults, self.users.faults
        )

    def _size(self) -> int:
        return self.random.choice([1, 3, 3, 4, 5])

    # Time

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        self.at(self.now + seconds, act)

    def at(self, when: float, act: Callable[[], None]) -> None:
        heappush(self._events, (when, next(self._numbers), act))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._events and self._events[0][0] <= end:
            self.now, _, act = heappop(self._events)
            act()
        self.now = end

    def say(self, text: str) -> None:
        if self._trace:
            sys.stdout.write(f"{self.now:8.3f}  {text}\n")

    # The quorum

    def commit(self, command: AnyCommand) -> AnyResult:
        before, name = self.image, type(command).__name__
        envelope = decode_command(encode_command(command))
        version = before.version + self.random.randint(1, 3)
        self.image, result = apply(before, version, envelope)
        self.commits[name] = self.commits.get(name, 0) + 1
        self.say(f"{version} {command} -> {result}")
        check_step(before, self.image)
        self.moves.on_commit(before, command, self.image)
        # Most commands are about slots, which the step alone covers.
        if any(change.kind != ChangeKind.SLOT for change in self.image.changes):
            check(self.image)
        return result

    def propose(self, command: AnyCommand, on_result: Callable[..., None] | None = None) -> None:
        """Commit it, or lose it, or commit it after its proposer has given up."""
        tell = on_result or _forget
        fate = 0.0 if self.is_calm else self.random.random()
        delay = self.random.uniform(0.001, 0.03)
        if fate < 0.85:
            self.after(delay, lambda: tell(self.commit(command)))
            return
        if fate < 0.95:
            late = delay if fate < 0.9 else self.random.uniform(1.0, 10.0)
            self.after(late, lambda: _forget(self.commit(command)))
        self.say(f"nobody knows what becomes of {command}")
        self.after(self.random.uniform(0.1, 2.0), lambda: tell(None))

    # Controllers

    def take_office(self) -> None:
        """A new term begins; the old controller goes on for a while, with an old image."""
        if self._controller and not self.is_calm:
            self._haunt(self._controller, self.now + self.random.uniform(0.0, 3.0))
        controller = self._controller = Controller(range(len(self.brokers)))
        self._heard.clear()
        self.moves.on_office()
        self.say("a new controller")
        self.controller_paused_until = 0.0
        self._perform(controller, controller.on_office(now=self.now, image=self.image))
        self._tick(controller)

    def leave_office(self) -> None:
        """There is no controller until the quorum has elected a leader."""
        if self._controller and not self.is_calm:
            self._haunt(self._controller, self.now + self.random.uniform(0.0, 3.0))
        self._controller = None

    def _tick(self, controller: Controller) -> None:
        if self._controller is not controller:
            return
        if self.now < self.controller_paused_until:
            self.at(self.controller_paused_until, lambda: self._tick(controller))
            return
        self._perform(controller, controller.on_tick(now=self.now, image=self.image))
        self.after(TICK_SECONDS, lambda: self._tick(controller))

    def _haunt(self, controller: Controller, until: float) -> None:
        """It does not know that it was deposed: it gets no messages and no newer image."""
        image = self.image

        def turn() -> None:
            if self.is_calm or self.now > until:
                return
            for effect in controller.on_tick(now=self.now, image=image):
                if not isinstance(effect, ProbeBroker):
                    self.propose(effect.command)
            self.after(TICK_SECONDS, turn)

        self.after(TICK_SECONDS, turn)

    def _perform(self, controller: Controller, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ProbeBroker):
                self._probe(controller, effect)
            else:
                self._propose_for(controller, effect)

    def _propose_for(self, controller: Controller, effect: ProposeCommand) -> None:
        command = effect.command

        def on_result(result: AnyResult | None) -> None:
            if self._controller is controller:
                self.moves.on_result(command)
                follows = controller.on_result(effect, result, now=self.now, image=self.image)
                self._perform(controller, follows)

        self._proposed += 1
        self.moves.on_proposed(self.image, command)
        if isinstance(command, UnfenceBroker):
            key = (command.broker_id, command.broker_epoch)
            assert key in self._heard, f"broker {key[0]} would be unfenced, and was not heard of"
        self.propose(command, on_result)

    def _probe(self, controller: Controller, probe: ProbeBroker) -> None:
        def answer() -> None:
            if self._controller is not controller:
                return
            outcome = self._outcome(self.brokers[probe.broker_id])
            self.say(f"{probe} -> {outcome.name}")
            follows = controller.on_probe(probe, outcome, now=self.now, image=self.image)
            self._perform(controller, follows)

        self.at(max(self.now, probe.not_before) + self.random.uniform(0.0, 0.02), answer)

    def _outcome(self, broker: SimulatedBroker) -> ProbeOutcome:
        if not self.is_calm and self.random.random() < 0.1:
            return ProbeOutcome.TIMED_OUT
        return ProbeOutcome.ACCEPTED if broker.is_running else ProbeOutcome.REFUSED

    def heartbeat(self, said: BrokerContact) -> HeartbeatAnswer | None:
        is_deaf = self._controller is None or self.now < self.controller_paused_until
        if is_deaf or (not self.is_calm and self.random.random() < 0.05):
            return None
        assert self._controller is not None
        self._heard.add((said.broker_id, said.broker_epoch))
        answer = self._controller.on_heartbeat(said, now=self.now, image=self.image)
        if answer.is_fenced or answer.may_stop:
            self.say(f"{said} -> {answer}")
        return answer

    def reset_connection(self, broker_id: int) -> None:
        if self._controller and self.now >= self.controller_paused_until:
            controller = self._controller
            self._perform(
                controller,
                controller.on_connection_reset(broker_id, now=self.now, image=self.image),
            )

    def on_stopped(self, broker: SimulatedBroker) -> None:
        self.say(f"broker {broker.broker_id} has stopped")
        self.after(self.random.uniform(0.1, 10.0), broker.start)

    # The acts

    def play(self) -> None:
        """A cluster comes up, suffers, heals, and then nothing is left to do."""
        for broker in self.brokers:
            broker.start()
        self.take_office()
        self.run(CALM_START_SECONDS)
        self.users.create_topics()
        self.is_calm = False
        self.nemesis.begin()
        self.run(TROUBLE_SECONDS)
        self.heal()
        self.run(HEALING_SECONDS)
        self.elect_the_lost()
        self.run(QUIET_SECONDS)
        self.expect_health()
        proposed = self._proposed
        self.run(QUIET_SECONDS)
        assert self._proposed == proposed, "a sound cluster, and the controller is not content"
        self.lose_one(self.brokers[0], self.brokers[0].kill, within=FAST_SECONDS, is_reset=True)
        if len(self.brokers) > 1:
            last = self.brokers[-1]
            self.lose_one(last, last.pause, within=SESSION_SECONDS + 0.5, is_reset=False)

    def heal(self) -> None:
        self.say("healing")
        self.users.plan_moves()  # what is planned now begins and ends
        self.is_calm = True
        for broker in self.brokers:
            broker.paused_until, broker.frozen_since = min(broker.paused_until, self.now), None
            broker.stuck_until = 0.0
            broker.start()
        # The one in office may go on, with all that it believes of the brokers.
        if self._controller is None or self.random.random() < 0.5:
            self.take_office()

    def elect_the_lost(self) -> None:
        """An operator's unclean election; no other partition may be left without a leader."""
        for key, partition in sorted(self.image.partitions.items()):
            if partition.leader == NO_BROKER:
                trusted = (*partition.isr, *partition.eligible)
                assert not trusted, f"{key} could have a leader: {partition}"
                self.commit(ElectLeader(*key, ElectionKind.UNCLEAN))

    def lose_one(
        self, broker: SimulatedBroker, lose: Callable[[], None], *, within: float, is_reset: bool
    ) -> None:
        """In a sound cluster the others take over in time."""
        lose()
        if is_reset:
            self.reset_connection(broker.broker_id)
        self.run(within)
        broker_id, image = broker.broker_id, self.image
        assert not image.is_unfenced(broker_id), f"broker {broker_id} is gone and not fenced"
        for key in image.hosted_by(broker_id):
            partition = image.partitions[key]
            heirs = [member for member in partition.isr if image.is_active(member)]
            assert partition.leader in heirs or not heirs, f"{key}: {partition}"
            assert broker_id not in partition.isr, f"{key}: {partition}"

    def expect_health(self) -> None:
        image = self.image
        for broker_id, broker in image.brokers.items():
            assert image.is_active(broker_id), f"not in service: {broker}"
            assert broker.pending is Pending.NOTHING, f"under review: {broker}"
        assert len(image.brokers) == len(self.brokers), "not all are registered"
        assert image.feature_level == SUPPORTED_LEVEL, f"still at level {image.feature_level}"
        for key, partition in image.partitions.items():
            assert partition.leader != NO_BROKER, f"{key} has no leader: {partition}"
            assert set(partition.isr) == set(partition.replicas), f"{key}: {partition}"
            assert partition.recovery_state is RecoveryState.RECOVERED, f"{key}: {partition}"
        assert not image.moves, f"moves that have not begun: {image.moves}"
        assert not image.moving, f"moves that have not ended: {image.moving}"
        owned = [sum(slot.broker_id == b for slot in image.slots) for b in image.brokers]
        assert sum(owned) == len(image.slots), "a slot without an active broker"
        assert max(owned) - min(owned) <= 1, f"slots are not spread evenly: {owned}"


def _forget(_result: AnyResult | None) -> None:
    """Its proposer has given up."""


def failure(seed: int, *, trace: bool = False) -> str | None:
    """What goes wrong in one world, with the command that replays it."""
    try:
        World(seed, trace=trace).play()
    except Exception:
        replay = f"python -m tests.simulation.controller_world --seed {seed} --trace"
        return f"{traceback.format_exc()}\nreplay: {replay}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many worlds")
    parser.add_argument("--trace", action="store_true", help="tell everything that happens")
    options = parser.parse_args()
    failed = 0
    for seed in range(options.seed, options.seed + options.seeds):
        found = failure(seed, trace=options.trace)
        failed += found is not None
        sys.stdout.write(f"{found}\n" if found else "")
    sys.stderr.write(f"{failed} of {options.seeds} worlds failed\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
