"""Moves: `topic move`, `topic alter --replication-factor`, `cluster moves` (A10.2)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from raftmq.cli.main import main
from raftmq.cli.moves.move_wait import CopyRates, seconds_left
from raftmq.client.administration.moves import PartitionMove
from raftmq.errors import ErrorCode, RequestTimedOut
from raftmq.wire.messages.moves import ListMoves, MovePartitions
from tests.unit.client.administration.planned_moves import UNCERTAIN
from tests.unit.client.administration.served import serve_bureau
from tests.unit.metadata.test_controller_moves import Cluster, hosting, planned, waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.client.administration.bureau import Bureau
    from tests.unit.client.administration.planned_moves import PlannedMoves


class Here(NamedTuple):
    bureau: Bureau
    bootstrap: str

    @property
    def moves(self) -> PlannedMoves:
        return self.bureau.moves

    def run(self, line: str) -> Result:
        return CliRunner().invoke(main, ["-b", self.bootstrap, *line.split()])

    def rows(self, line: str) -> list[dict[str, Any]]:
        return [json.loads(each) for each in self.run(f"{line} -o json").stdout.splitlines()]


def fill(bureau: Bureau) -> None:
    """Topic "u" of two partitions on brokers 1 and 2, each with 800 bytes."""
    topic = bureau.world.add_topic("u", 1, 2)
    for number, partition in enumerate(topic.partitions):
        pair = (partition.leader, 3 - partition.leader)
        bureau.replicas["u", number] = pair, pair
        partition.end_offset = 80


@pytest.fixture
def here() -> Iterator[Here]:
    """Three brokers, topics "t" and "u"."""
    with serve_bureau(fill, brokers=3) as (bureau, address):
        yield Here(bureau, str(address))


# -- topic move --------------------------------------------------------------------------------


def test_partitions_are_moved(here: Here) -> None:
    """From where to where, and how to see on; a program gets an object for each."""
    result = here.run("topic move u 0 1 --to 3,1")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "partition  replicas  target  outcome",
        "        0  1,2       3,1     planned",
        "        1  2,1       3,1     planned",
        "`raftmq cluster moves` shows how far they are",
    ]
    assert {key: row.target for key, row in here.moves.rows.items()} == {
        ("u", 0): (3, 1), ("u", 1): (3, 1),
    }  # fmt: skip
    assert here.rows("topic move u 1 --to 2") == [
        {
            "name": "u", "partition": 1, "replicas": [2, 1], "target": [2],
            "outcome": "planned", "error": None,
        }
    ]  # fmt: skip


def test_a_broker_that_there_is_not(here: Here) -> None:
    """Exit code 1."""
    result = here.run("topic move u 0 --to 1,9")
    assert (result.exit_code, result.stderr) == (1, "")
    assert "failed: u-0: replicas [1, 9]: there is no broker 9" in result.stdout
    assert "shows how far" not in result.stdout
    [row] = here.rows("topic move u 0 --to 1,9")
    assert (row["outcome"], row["error"]) == (
        "failed", "u-0: replicas [1, 9]: there is no broker 9",
    )  # fmt: skip


@pytest.mark.parametrize("line", ["topic move no 0 --to 1", "topic move u 0 7 --to 1"])
def test_a_topic_or_partition_that_there_is_not(line: str, here: Here) -> None:
    """Exit code 3, and nothing is moved."""
    result = here.run(line)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("raftmq: ")
    assert here.bureau.count(MovePartitions) == 0


# -- --wait ------------------------------------------------------------------------------------


def steps(here: Here, *each: Callable[[], object]) -> None:
    here.moves.steps = [*each]


def say(here: Here, number: int, why: str) -> None:
    here.moves.rows["u", number] = replace(here.moves.rows["u", number], waits_for=why)


def test_waiting_until_they_have_moved(here: Here) -> None:
    """Why some stand still is told once for each reason; each is named when it is done."""
    begin, finish = here.moves.begin, here.moves.finish
    steps(
        here,
        lambda: [begin("u", number, "broker 3 is down") for number in (0, 1)],
        partial(say, here, 0, "no leader"),
        partial(say, here, 0, "broker 3 is down"),
        partial(say, here, 0, ""),
        partial(finish, "u", 1),
        partial(finish, "u", 0),
    )
    result = here.run("topic move u 0 1 --to 3,1 --wait")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "partition 1 of topic u: moved",
        "partition 0 of topic u: moved",
    ]
    assert result.stderr.splitlines() == [
        "raftmq: waiting: 2 moves: broker 3 is down",
        "raftmq: waiting: 1 move: no leader",
    ]
    steps(here, lambda: finish("u", 0))
    [row] = here.rows("topic move u 0 --to 2,1 --wait")
    assert (row["outcome"], row["replicas"], row["target"]) == ("moved", [3, 1], [2, 1])


def test_a_limit_is_no_news(here: Here) -> None:
    """That a move waits for others is not told, in the words of the real controller."""
    plans = {0: (3,), 1: (3,), 2: (3,), 3: (4,)}
    image = Cluster(planned(hosting((0,), (0,), (1,), (0,)), plans)).image
    crowd = hosting(*((n % 12,) for n in range(24)), brokers=24)
    crowd = Cluster(planned(crowd, {n: (12 + n % 12,) for n in range(24)})).image
    reasons = waits(image, 2), waits(image, 3), waits(crowd, 23)
    assert all(reasons)
    told = [partial(say, here, 0, why) for why in reasons]
    steps(here, *told, partial(here.moves.finish, "u", 0))
    result = here.run("topic move u 0 --to 3,1 --wait")
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize("behind", [{}, {1: {}}])
def test_more_replicas_are_waited_for(here: Here, behind: dict[int, Any]) -> None:
    """The replicas are the wanted ones as soon as the move begins. Also where the broker that lists
    moves does not know of it yet."""

    def begin() -> None:
        here.moves.known = behind
        here.moves.begin("u", 0)

    steps(here, begin, lambda: None, lambda: None, partial(here.moves.finish, "u", 0))
    result = here.run("topic move u 0 --to 1,2,3 --wait")
    assert (result.exit_code, result.stdout) == (0, "partition 0 of topic u: moved\n")
    assert (here.moves.rows, result.stderr) == ({}, "")


def test_new_replicas_are_in_sync_when_a_move_is_done(here: Here) -> None:
    """One that is not is told."""

    def lose() -> None:
        here.moves.finish("u", 0)
        here.bureau.replicas["u", 0] = (3, 1), (1,)

    def regain() -> None:
        here.bureau.replicas["u", 0] = (3, 1), (1, 3)

    steps(here, lose, regain)
    result = here.run("topic move u 0 --to 3,1 --wait")
    assert (result.exit_code, result.stdout) == (0, "partition 0 of topic u: moved\n")
    assert result.stderr == "raftmq: waiting: 1 move: broker 3 is not in sync\n"


def test_waiting_at_a_terminal(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar with how many are done, and how fast they are copied."""
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True)
    steps(
        here,
        partial(here.moves.begin, "u", 0),
        lambda: here.bureau.copied.update({(3, "u", 0): 400}),
        partial(here.moves.finish, "u", 0),
    )
    result = here.run("topic move u 0 --to 3,1 --wait")
    assert (result.exit_code, "0 of 1 moved, 0.00 MB/s" in result.stderr) == (0, True)


def test_waiting_for_what_is_refused(here: Here) -> None:
    """The others are waited for; the exit code is that of the refusal."""
    here.bureau.errors = [ErrorCode.INVALID_REQUEST]
    steps(here, partial(here.moves.finish, "u", 1))
    result = here.run("topic move u 0 1 --to 3,1 --wait")
    assert (result.exit_code, result.stdout.splitlines()) == (
        2,
        ["partition 0 of topic u: failed: u-0: INVALID_REQUEST", "partition 1 of topic u: moved"],
    )
    result = here.run("topic move u 0 --to 9 --wait")
    assert (result.exit_code, result.stdout.count("failed")) == (1, 1)


def test_waiting_for_what_is_uncertain(here: Here) -> None:
    """It is asked for again. What stays uncertain is told so, and waited for as the others are."""
    here.bureau.errors = [UNCERTAIN]
    steps(here, partial(here.moves.finish, "u", 0))
    result = here.run("topic move u 0 --to 3,1 --wait")
    assert (result.exit_code, result.stdout) == (0, "partition 0 of topic u: moved\n")
    doubt = [ErrorCode.NONE, UNCERTAIN, ErrorCode.INVALID_UPDATE_VERSION]
    here.bureau.errors = [*doubt]
    rows = here.rows("topic move u 0 1 --to 2,1")
    assert [row["outcome"] for row in rows] == ["planned", "unknown"]
    here.bureau.errors = [*doubt]
    steps(here, partial(here.moves.finish, "u", 0), partial(here.moves.finish, "u", 1))
    result = here.run("topic move u 0 1 --to 1,3 --wait")
    assert (result.exit_code, result.stdout.count(": moved\n")) == (0, 2)
    here.bureau.errors = [UNCERTAIN] * 1000
    result = here.run("topic move u 0 --to 2,1 --timeout 1")
    assert (result.exit_code, "it may have been carried out" in result.stderr) == (5, True)


def test_waiting_is_over(here: Here) -> None:
    """Exit code 5, and it goes on."""
    result = here.run("topic move u 0 --to 3,1 --wait --timeout 0.7")
    assert (result.exit_code, result.stdout) == (5, "")
    assert "not moved yet: partition 0 of topic u; this goes on, `raftmq cluster moves`" in (
        result.stderr
    )
    assert here.moves.rows["u", 0].target == (3, 1)


def test_a_move_that_is_taken_back_or_replaced_meanwhile(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, with what there is now."""
    monkeypatch.setattr("raftmq.cli.moves.move_wait.GONE_SECONDS", 0.2)
    steps(here, partial(here.moves.begin, "u", 0), lambda: here.moves._cancel(("u", 0)))
    result = here.run("topic move u 0 --to 3,1 --wait")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "raftmq: partition 0 of topic u: its move was taken back; its replicas are 1,2\n"
    )

    def take_its_place() -> None:
        here.moves.rows["u", 0] = replace(here.moves.rows["u", 0], target=(3,))

    steps(here, take_its_place)
    result = here.run("topic move u 0 --to 3,1 --wait")
    assert (result.exit_code, result.stderr) == (
        1, "raftmq: partition 0 of topic u: another move took its place, to 3\n",
    )  # fmt: skip


def test_waiting_while_nobody_answers(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failover is waited for, with its reason."""
    monkeypatch.setattr("raftmq.cli.moves.move_wait.ANSWER_SECONDS_MAX", 0.3)

    def hang() -> None:
        here.moves.steps = [hang]
        raise RequestTimedOut("it hangs")

    steps(here, hang)
    result = here.run("topic move u 0 --to 3,1 --wait --timeout 1.5")
    assert (result.exit_code, result.stderr.count("waiting: no answer: it hangs")) == (5, 1)


# -- topic alter -------------------------------------------------------------------------------


def test_more_replicas(here: Here) -> None:
    """A dry run first, then the plan; a second time there is nothing to do."""
    dry = here.run("topic alter u -r 3 --dry-run")
    assert (dry.exit_code, here.bureau.count(MovePartitions)) == (0, 0)
    assert dry.stdout.splitlines() == [
        "topic u: replication factor 3: 2 partitions would get other replicas",
        "partition  replicas  target  outcome",
        "        0  1,2       1,2,3   not planned",
        "        1  2,1       2,1,3   not planned",
    ]
    done = here.run("topic alter u --replication-factor 3")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == (
        "topic u: replication factor 3: 2 partitions to get other replicas"
    )
    assert done.stdout.splitlines()[-1] == "`raftmq cluster moves` shows how far they are"
    assert here.run("topic alter u -r 3").stdout == (
        "topic u: replication factor 3: nothing more has to be moved\n"
    )
    assert here.rows("topic alter u -r 3") == [{"name": "u", "replication_factor": 3, "moves": []}]


def test_fewer_replicas_after_other_changes(here: Here) -> None:
    """In the order of the risk; a program gets an object for each change, a person a warning."""
    keys, factor = here.rows("topic alter u -c min.insync.replicas=1 -r 1")
    assert keys == {"name": "u", "config": {"min.insync.replicas": "1"}}
    assert [one["target"] for one in factor["moves"]] == [[1], [2]]
    assert "warning: topic u: one replica: " in here.run("topic alter u -r 1").stderr


def test_an_alteration_is_waited_for(here: Here) -> None:
    """As a move is; also where an earlier call has planned it."""
    here.run("topic alter u -r 3")
    here.run("cluster moves --cancel u 1")
    steps(
        here,
        lambda: None,
        lambda: None,
        partial(here.moves.finish, "u", 0),
        partial(here.moves.finish, "u", 1),
    )
    result = here.run("topic alter u -r 3 --wait")
    assert result.stdout.splitlines()[-2:] == [
        "partition 0 of topic u: moved", "partition 1 of topic u: moved",
    ]  # fmt: skip
    result = here.run("topic alter u -r 3 --wait -o json")
    assert (result.exit_code, result.stdout) == (0, "")


def test_more_replicas_than_brokers(here: Here) -> None:
    """Exit code 1, with those that are active."""
    here.bureau.down = {3}
    result = here.run("topic alter u -r 3")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "replication factor 3: only 2 brokers are active (1, 2)" in result.stderr
    assert here.run("topic alter no -r 3").exit_code == 3


# -- topic describe ----------------------------------------------------------------------------


def test_a_description_tells_that_a_partition_moves(here: Here) -> None:
    """New replicas are no replicas that fail to be in sync."""
    here.run("topic move u 0 --to 3,1")
    here.moves.begin("u", 0)
    here.bureau.replicas["u", 0] = (3, 1, 2), (1,)
    result = here.run("topic describe u")
    assert "moving: new 3, to go 2; not in sync: 2\n" in result.stdout
    [row] = here.rows("topic describe u")
    assert [(one["adding"], one["removing"]) for one in row["partitions"]] == [
        ([3], [2]), ([], []),
    ]  # fmt: skip


# -- cluster moves -----------------------------------------------------------------------------


def test_nothing_moves(here: Here) -> None:
    """A line for people, nothing for programs."""
    result = here.run("cluster moves")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "no partition moves\n", "")
    assert here.rows("cluster moves") == []
    assert here.run("cluster moves --cancel-all").stdout == (
        "no partition moves, nothing to cancel\n"
    )


def test_what_moves(here: Here) -> None:
    """Those under way first; why others wait."""
    here.run("topic move u 0 1 --to 3,1")
    here.run("topic move t 0 --to 2")
    here.moves.begin("u", 1)
    here.bureau.copied = {(3, "u", 1): 300}
    result = here.run("cluster moves")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "topic  partition  replicas  target  copied   of  note",
        "u              1  3,1,2     3,1        300  800  under way",
        "u              0  1,2       3,1          -    -  waits for its turn",
        "t              0  1         2            -    -  waits for its turn",
        "3 moves: 1 under way, 2 waiting",
    ]
    assert here.rows("cluster moves")[0] == {
        "topic": "u", "partition": 1, "replicas": [3, 1, 2], "target": [3, 1], "adding": [3],
        "leader": 2, "is_under_way": True, "waits_for": None, "bytes_done": 300,
        "bytes_total": 800, "bytes_per_second": None, "seconds_left": None,
    }  # fmt: skip


def test_why_a_move_does_not_go_on(here: Here) -> None:
    """One that waits, and one that stands."""
    here.run("topic move u 0 1 --to 3,1")
    here.moves.begin("u", 0, "broker 3 is down")
    here.moves.rows["u", 1] = replace(here.moves.rows["u", 1], waits_for="no leader")
    told = here.run("cluster moves").stdout
    assert ("stands: broker 3 is down\n" in told, "waits: no leader\n" in told) == (True, True)
    assert [row["waits_for"] for row in here.rows("cluster moves")] == [
        "broker 3 is down", "no leader",
    ]  # fmt: skip


def test_moves_are_cancelled(here: Here) -> None:
    """Some, with exit code 1 for one that there is not; then all."""
    here.run("topic move u 0 1 --to 3,1")
    here.run("topic move t 0 --to 2")
    result = here.run("cluster moves --cancel u 1 --cancel t 0")
    assert (result.exit_code, result.stdout.splitlines()) == (
        0, ["partition 1 of topic u: cancelled", "partition 0 of topic t: cancelled"],
    )  # fmt: skip
    result = here.run("cluster moves --cancel u 1")
    assert (result.exit_code, result.stdout) == (1, "partition 1 of topic u: not moving\n")
    assert here.run("cluster moves --cancel u 2").exit_code == 3
    assert here.run("cluster moves --cancel no 0").exit_code == 3
    assert here.rows("cluster moves --cancel-all") == [
        {"topic": "u", "partition": 0, "outcome": "cancelled", "error": None}
    ]
    here.run("topic move u 0 --to 3,1")
    here.bureau.errors = [ErrorCode.INVALID_REQUEST]
    [row] = here.rows("cluster moves --cancel-all")
    assert (row["outcome"], row["error"]) == ("failed", "u-0: INVALID_REQUEST")


def test_watching(here: Here) -> None:
    """Look after look, with the rate from the second on; Ctrl-C ends it."""
    here.run("topic move u 0 --to 3,1")
    here.moves.begin("u", 0)
    here.bureau.copied = {(3, "u", 0): 0}

    def copy() -> None:
        here.bureau.copied[3, "u", 0] += 100
        here.moves.steps.append(copy)

    here.moves.steps = [copy]
    command = [sys.executable, "-m", "raftmq", "cluster", "moves", "--watch", "-b", here.bootstrap]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(6)]
    assert lines[0] == [
        "topic", "partition", "replicas", "target", "copied", "of", "rate", "left", "note",
    ]  # fmt: skip
    assert lines[1] == ["u", "0", "3,1,2", "3,1", "100", "800", "-", "-", "under", "way"]
    assert (lines[4][4], lines[4][6:8]) == ("200", ["0.00", "MB/s"])
    assert lines[4][8].endswith("s")
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=10)
    assert (process.returncode, stderr.strip()) == (130, "raftmq: interrupted")


# -- rates -------------------------------------------------------------------------------------


def move(done: int | None, *, adding: tuple[int, ...] = (3,)) -> PartitionMove:
    return PartitionMove("u", 0, (3, 1), (3, 1), adding, True, 1, "", done, 1000)


def test_rates() -> None:
    """From one look to the next of the same copies; never below zero."""
    rates = CopyRates()
    assert rates.measure([move(100)], 10.0) == {}
    assert rates.measure([move(300)], 12.0) == {("u", 0): 100.0}
    assert rates.measure([move(200)], 13.0) == {("u", 0): 0.0}
    assert rates.measure([move(250, adding=(3, 4))], 14.0) == {}
    assert rates.measure([move(None)], 15.0) == {}
    assert rates.measure([move(500)], 16.0) == {}
    assert rates.measure([move(600)], 16.0) == {}
    assert rates.measure([], 17.0) == {}
    assert seconds_left(move(600), 100.0) == 4.0
    assert seconds_left(move(600), 0.0) is seconds_left(move(None), 5.0) is None


# -- what goes wrong ---------------------------------------------------------------------------

WRONG = [
    ("topic move", "Missing argument 'NAME'"),
    ("topic move t", "Missing argument 'PARTITION...'"),
    ("topic move t 0", "Missing option '--to'"),
    ("topic move t x --to 1", "is not a valid int"),
    ("topic move t --to 1 -- -1", "is not in the range"),
    ("topic move a/b 0 --to 1", "allowed are 1 to 200"),
    ("topic move t 0 --to x", "--to x: expected ids of brokers, the preferred leader first"),
    ("topic move t 0 --to 1,,2", "expected ids of brokers"),
    ("topic move t 0 --to 1,-2", "expected ids of brokers"),
    ("topic move t 0 --to 1,2,1", "a broker stands there twice"),
    ("topic move t 0 --to " + ",".join(map(str, range(17))), "17 brokers: allowed 1 to 16"),
    ("topic alter t -r 0", "is not in the range"),
    ("topic alter t -r many", "is not a valid int"),
    ("topic alter t --wait", "choose one, with --replication-factor"),
    ("topic alter t --dry-run -p 3", "choose one, with --replication-factor"),
    ("topic alter t -r 3 --dry-run --wait", "choose one, with --replication-factor"),
    ("topic alter t -r 3 --dry-run -p 3", "give that alone"),
    ("cluster moves --cancel t", "requires 2 arguments"),
    ("cluster moves --cancel t x", "is not a valid int"),
    ("cluster moves --cancel t -1", "is not in the range"),
    ("cluster moves --cancel a/b 0", "allowed are 1 to 200"),
    ("cluster moves --cancel-all --watch", "choose one"),
    ("cluster moves --cancel t 0 --cancel-all", "choose one"),
]


@pytest.mark.parametrize(("line", "told"), WRONG)
def test_what_was_typed_wrongly(line: str, told: str) -> None:
    """One line, exit code 2, and nobody is asked: there is nobody here."""
    result = CliRunner().invoke(main, ["-b", "127.0.0.1:1", *line.split()])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert told in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_cluster_of_an_older_version() -> None:
    """Exit code 1: it has to be upgraded."""

    def age(bureau: Bureau) -> None:
        for broker in bureau.world.brokers.values():
            del broker.handlers[ListMoves], broker.handlers[MovePartitions]

    with serve_bureau(age) as (bureau, address):
        here = Here(bureau, str(address))
        for line in ("cluster moves", "topic move t 0 --to 1", "topic alter t -r 1"):
            result = here.run(line)
            assert (result.exit_code, result.stdout) == (1, ""), line
