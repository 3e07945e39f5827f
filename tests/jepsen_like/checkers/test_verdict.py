"""What follows from the findings: pass, fail, or nothing that anybody could vouch for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jepsen_like.checkers import linearizable
from jepsen_like.checkers.activity import Demands
from jepsen_like.checkers.finding import EXAMPLES_MAX, NAMES
from jepsen_like.checkers.verdict import (
    OF_GROUPS,
    OF_NAMES,
    OF_RETRIES,
    OF_SCHEDULES,
    OF_TRANSACTIONS,
    Result,
    Verdict,
    judge,
)
from jepsen_like.history.event import NEMESIS, Event, Type
from tests.jepsen_like.checkers.script import Script

if TYPE_CHECKING:
    import pytest


def good() -> Script:
    script = Script()
    script.send_many(3)
    script.poll([(0, 0), (1, 1), (2, 2)])
    return script


def spoil(script: Script) -> Script:
    script.poll([(5, 77)], process=5)
    return script


def test_a_good_run_passes() -> None:
    """Every kind was looked for, and nothing found."""
    verdict = judge(good().events)
    assert verdict.result is Result.PASS
    assert [finding.name for finding in verdict.findings] == list(NAMES)
    assert not verdict.failures
    assert not verdict.reasons
    assert verdict.figures["operations"] == 2
    assert verdict.figures["values acknowledged"] == verdict.figures["records polled"] == 3


def test_the_worst_comes_first() -> None:
    """One fault shows in many ways."""
    script = spoil(good())
    script.poll([(2, 77)], process=6)
    names = [finding.name for finding in judge(script.events).failures]
    assert names[0] == "inconsistent-offsets"
    assert names == sorted(names, key=NAMES.index)


def test_what_is_allowed_is_reported_only() -> None:
    """It is counted, and the run passes."""
    verdict = judge(spoil(good()).events, Demands(allowed=frozenset({"unexpected-read"})))
    assert verdict.result is Result.PASS
    assert {finding.name: finding.count for finding in verdict.findings}["unexpected-read"] == 1


def test_of_many_examples_a_few_are_kept() -> None:
    """The count tells of all."""
    script = Script()
    script.poll([(n, n) for n in range(100)])
    finding = script.finding("unexpected-read")
    assert finding.count == 100
    assert len(finding.examples) == EXAMPLES_MAX


def test_a_verdict_is_written_and_read() -> None:
    """As JSON, nothing is lost."""
    verdict = judge(spoil(good()).events)
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict
    assert str(verdict).startswith("verdict: fail\nunexpected-read: 1\n  key 'k', value 77")


def test_a_run_in_which_nothing_worked_proves_nothing() -> None:
    """Half of the operations must end well."""
    script = good()
    for _ in range(3):
        script.poll([], kind=Type.FAIL)
    verdict = judge(script.events)
    assert verdict.result is Result.UNKNOWN
    assert verdict.reasons == ["2 of 5 operations ended well, 50% are wanted"]
    assert judge([]).reasons == ["no client did anything"]


def test_a_run_in_which_little_happened_proves_nothing() -> None:
    """So many acknowledged values and faults, as the one who ran it wanted."""
    verdict = judge(good().events, Demands(acks_min=4, faults_min=1))
    assert verdict.result is Result.UNKNOWN
    assert verdict.reasons == [
        "3 values were acknowledged, 4 are wanted",
        "0 faults happened, 1 are wanted",
    ]


def test_faults_are_counted_when_they_begin() -> None:
    """Their end is not another one."""
    script = good()
    fault(script, Type.INVOKE)
    fault(script, Type.INFO)
    verdict = judge(script.events, Demands(faults_min=1))
    assert verdict.result is Result.PASS
    assert verdict.figures["fault kill"] == 1


def test_a_fault_that_was_skipped_is_none() -> None:
    """It was to begin, and could not."""
    script = good()
    fault(script, Type.INVOKE)
    fault(script, Type.INFO, skipped="no leader")
    fault(script, Type.INVOKE)
    assert judge(script.events).figures["fault kill"] == 1


def fault(script: Script, kind: Type, **told: str) -> None:
    value = {"nodes": [1], **told}
    script.events.append(Event(len(script.events), 1.0, NEMESIS, kind, "kill", value))


def test_a_run_that_was_cut_short_proves_nothing() -> None:
    """Where the end was wanted: the last reads, and the logs of replicas."""
    verdict = judge(good().events, Demands(is_to_end=True))
    assert verdict.reasons == [
        "nobody read everything at the end of 'k'",
        "nobody looked at the replicas of 'k'",
        "nobody said that it leads 'k'",
    ]
    assert len(verdict.not_judged) == 8


def test_a_run_to_the_end_is_judged_whole() -> None:
    """Clients worked until the last reads; these and replicas are there."""
    script = Script()
    script.leads(1, 1)
    script.phase("heal")
    script.send_many(3)
    script.poll([(0, 0), (1, 1), (2, 2)])
    to_the_end(script)
    verdict = judge(script.events, Demands(is_to_end=True))
    assert verdict.result is Result.PASS
    unused = {*OF_GROUPS, *OF_NAMES, *OF_TRANSACTIONS, *OF_SCHEDULES, *OF_RETRIES}
    assert verdict.not_looked_at == {"not-linearizable", *unused}


def to_the_end(script: Script) -> None:
    script.phase("final")
    script.assign("beginning", process=9)
    script.poll([(0, 0), (1, 1), (2, 2)], process=9)
    script.replica(1, [0, 1, 2])


def test_clients_that_stopped_while_things_were_broken_prove_nothing() -> None:
    """They did enough before, and nothing when they could have; an empty poll is nothing."""
    script = good()
    script.leads(1, 1)
    script.phase("heal")
    script.poll([], process=2)
    to_the_end(script)
    assert judge(script.events, Demands(is_to_end=True)).reasons == [
        "no send ended well between the faults and the last reads",
        "no poll brought anything between the faults and the last reads",
    ]


def test_polls_are_no_excuse_for_sends() -> None:
    """Whoever asks nobody is told nothing, and that is ok: sends alone must end well, too."""
    script = good()
    for value in (7, 8):
        script.send([value], kind=Type.INFO, process=value)
    assert judge(script.events).reasons == ["1 of 3 sends ended well, 50% are wanted"]


def test_last_reads_that_gave_up_prove_nothing() -> None:
    """They say how far they came; what few acknowledged would then be missed by no other finding.

    That another one came to the end is enough.
    """
    for end, reasons in ((3, []), (4, ["the last reads did not come to the end of 'k'"])):
        script = good()
        script.phase("final")
        script.poll([(0, 0), (1, 1), (2, 2)], process=8)
        behind(script, "k", 0, end)
        assert judge(script.events).reasons == reasons


def test_last_reads_of_a_key_that_was_cut() -> None:
    """Somebody heard of more, from a leader that few followed; now all replicas end before."""
    script = good()
    script.phase("final")
    script.poll([(0, 0), (1, 1), (2, 2)], process=8)
    behind(script, "k", 3, 9)
    script.replica(1, [0, 1, 2])
    assert judge(script.events).reasons == []


def test_a_register_that_nobody_could_confirm_proves_nothing() -> None:
    """Nobody knows what it is in the end."""
    script = good()
    behind(script, "r")
    verdict = judge(script.events)
    assert verdict.result is Result.UNKNOWN
    assert verdict.reasons == ["the last reads did not come to the end of 'r'"]


def behind(script: Script, *told: object) -> None:
    script.begin(9, "behind", {"keys": [told]})
    script.end(9, "behind", {"keys": [told]}, Type.INFO)


def test_refusals_alone_prove_nothing() -> None:
    """They are answers, but of what is done nothing is known."""
    script = Script()
    register(script, 0, "write", value=1)
    for _ in range(3):
        register(script, 1, "cas", Type.FAIL, expected=7, value=8)
    verdict = judge(script.events, Demands(oks_min=2))
    assert verdict.reasons == ["1 operations were done, 2 are wanted"]


def test_what_is_wrong_is_wrong_however_little_happened() -> None:
    """Too little is no excuse."""
    assert judge(spoil(good()).events, Demands(acks_min=1000)).result is Result.FAIL


# -- registers -----------------------------------------------------------------------------


def register(script: Script, process: int, f: str, kind: Type = Type.OK, **value: Any) -> None:
    script.begin(process, f, {"key": "r", **value})
    script.end(process, f, {"key": "r", **value}, kind)


def test_a_register_that_works_passes() -> None:
    """Read, write, compare-and-set, and a refusal that tells what it found, which counts as ok."""
    script = Script()
    register(script, 0, "read", value=None)
    register(script, 0, "write", value=1)
    register(script, 1, "cas", expected=1, value=2)
    register(script, 1, "cas", Type.FAIL, expected=1, value=3, found=2)
    register(script, 0, "write", Type.FAIL, value=4)
    register(script, 0, "read", value=2)
    verdict = judge(script.events)
    assert verdict.result is Result.PASS
    assert verdict.figures["operations ok"] == 5


def test_a_stale_read_is_found() -> None:
    """Keys are judged alone and counted."""
    script = Script()
    register(script, 0, "write", value=1)
    register(script, 0, "write", value=2)
    register(script, 1, "read", value=1)
    assert script.found() == {"not-linearizable": 1}
    assert "key 'r' is not linearizable" in script.finding("not-linearizable").examples[0]


def test_a_write_that_never_ended_may_be_read() -> None:
    """At any time, as one of unknown outcome."""
    script = Script()
    script.begin(0, "write", {"key": "r", "value": 1})
    register(script, 1, "write", Type.INFO, value=2)
    register(script, 2, "read", value=1)
    register(script, 2, "read", value=2)
    assert script.found() == {}


def test_no_verdict_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can vouch for what is too tangled."""
    monkeypatch.setattr(linearizable, "STATES_MAX", 10)
    script = Script()
    for process in range(8):
        script.begin(process, "write", {"key": "r", "value": process})
    register(script, 9, "read", value=77)
    for process in range(8):
        script.end(process, "write", None)
    assert script.found() == {"not-linearizable": 1}
    finding = script.finding("not-linearizable")
    assert finding.figures == {"registers": 1, "without verdict": 1}
    assert "key 'r' has no verdict: more than 10 states" in finding.examples[0]
