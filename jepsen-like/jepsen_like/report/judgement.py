"""A verdict for people, and its encoding in verdict.json. Pure.

Owns the words for an outcome. Judges nothing: it takes the result of the checkers.
"""

from __future__ import annotations

import msgspec

from jepsen_like.checkers.verdict import Result, Verdict

PASSED, FAILED, UNKNOWN = "passed", "failed", "unknown"
WORDS = {PASSED: "PASSED", FAILED: "FAILED", UNKNOWN: "PROVES NOTHING"}
_OUTCOMES = {Result.PASS: PASSED, Result.FAIL: FAILED, Result.UNKNOWN: UNKNOWN}


def outcome_of(verdict: Verdict) -> str:
    return _OUTCOMES[verdict.result]


def anomalies_of(verdict: Verdict) -> int:
    """How much was found of what must not be."""
    return sum(finding.count for finding in verdict.failures)


def cut_short(verdict: Verdict) -> Verdict:
    """Of a run that did not come to its end: what it found stands, but it proves nothing."""
    if verdict.result is Result.FAIL:
        return verdict
    reason = "the run did not come to its end: nobody looked for what was lost"
    reasons = [reason, *verdict.reasons]
    return msgspec.structs.replace(verdict, result=Result.UNKNOWN, reasons=reasons)


def encode_verdict(verdict: Verdict) -> bytes:
    return msgspec.json.format(msgspec.json.encode(verdict), indent=2) + b"\n"


def decode_verdict(data: bytes) -> Verdict:
    return msgspec.json.decode(data, type=Verdict)
