"""The format of a history: events as JSON lines, and what each operation (`f`) carries.

One event is one line, in the order in which they happened. An operation is an
`invoke` and, later, one completion of the same process. Pure; knows nothing of any queue.

What `value` holds, by `f` (keys are names of partitions, values are unique per key):

    send       {"key", "acks", "values": [...]}; completed also "offsets": [offset or null, ...],
               parallel to values: an offset means that this value was acknowledged there;
               "is_repeated": the client may have sent it more than once; and, of an unknown
               outcome, "failed": the values that certainly were not appended. `acks` is -1 for all.
               "is_idempotent": however often it was sent, and however it ended, a value stands
               there once at most. "name", "generation": one run of a producer with a name, and all
               rows that this generation has in this key: ok once its block has ended without an
               error; others may send the same values, before, beside and after it.
               "due": its values are to be delivered then, at other offsets than these; in seconds
               since the run began, as all times
    cancel     {"key", "value", "offset"}: what was sent with "due" is not to be delivered; ok: it
               certainly is not; fail: it was not cancelled by this, {"why"}
    assign     {"keys": [...], "from": "beginning" | "end"}: what this process reads from now on
    poll       completed {"records": [[key, [[offset, value], ...]], ...],
               "high_watermarks": [[key, offset], ...]}; and of scheduled records "delivered":
               [[key, [[offset, due, delivered at], ...]], ...], as the records say
    watermark  completed {"key", "epoch", "high_watermark"}: as the leader of that epoch says
    crash      always info; the process begins anew, under another number
    behind     always info: {"keys": [[key, position, end], ...]}: what one of the last readers did
               not get to the end of; of a register nothing but [key]: it was not confirmed
    stale-read a register's value by a broker that may lag behind: promises nothing
    read, write, cas   a register: {"key", "value", "expected", "found"}; see checkers/linearizable
    isr        process "watch", ok: {"partitions", "led", "whole"}: how many partitions there are,
               have a leader, have all replicas in sync; fail: no broker answered
    keeps      process "watch", ok: {"replicas"}: each key is kept by so many nodes, and nothing is
               ever deleted from it
    pending    process "watch", ok: {"keys": [[key, [offset, ...]], ...]}: what leaders have still
               to deliver, after the last reads, by the offsets of the sends; fail: no answer
    leads      process "node", node n, info: {"key", "epoch"}: it says that it leads
    replica    process "node", node n, ok: {"key", "log_start", "high_watermark",
               "batches": [[base_offset, epoch, crc, [value, ...]], ...]}: a log at the end; and
               "damage": [what is wrong with its bytes, ...] where something is; "scheduled":
               [[base_offset, [value, ...]], ...]: of batches that readers do not get
    group      process "watch", ok: {"group", "keys": [...], "commit": "batch" | "record" |
               "manual" | "before"}: a consumer group that reads all of these from the beginning
    phase      process "run", info: "load", "faults", "heal", "final", "end"
    any fault  process "nemesis": invoke when it begins, info when it is over; the value,
               {"nodes": [...], ...}, says what was hit and how

A process that uses transactions is one producer with a transaction id, and consumers of its own;
`tx` is the number of a transaction, unique in the history. A send and a poll within one bear it:

    open       {"id"}: the producer opens, and ends what the one before it had open
    begin      ok: {"tx", "version" or null, "is_done"}: a block begins; -1: without a version;
               "is_done": another transaction has committed this version before
    send       {"tx", ...} as above; the outcome is of the append: whether it counts is the
               transaction's; also "of": [[group, key, offset] or null, ...], parallel to values: of
               which record that was read each of them is the result
    poll       {"tx"}; completed also {"session"}: another number whenever the position may have
               been set: after an abort, or when partitions came or went
    end        {"tx", "commit", "offsets": [[group, key, offset], ...]}; ok {"outcome"}:
               "committed", "aborted", or "before": another one had committed the version;
               fail: certainly aborted; info: unknown
    resolve    {"tx"}; ok {"outcome"}: what became of it, asked later
    join       {"tx", "id", "lineage", "version"}: a member joins a version of a shared transaction,
               and is a process of its own; ok also {"is_done"}: it was committed before
    commit-version   {"id", "lineage", "version", "members": [tx, ...], "count"}: the members that
               count; ok {"is_repeated", "count"}: it is committed, and was before, or by an attempt
               without an answer; fail: certainly not with these members; info: unknown
    abort-version    {"id", "lineage", "version"}; ok: nothing of it counts that had joined before
    assign     also "level": "committed" (where there is none) | "uncommitted"
    replica    also "transactional": [[base_offset, producer_id, epoch], ...]: batches in
               transactions; "markers": [[offset, producer_id, epoch, is_commit], ...]
    stable     process "watch", ok: {"ends": [[key, last_stable_offset, high_watermark], ...],
               "unsettled": [id, ...]}: when no client is left; the last one counts
    group-offsets   process "watch", ok: {"offsets": [[group, key, offset], ...]}: at the end
    installed  process "node", node n, info: it has installed a snapshot of the quorum

Members of groups have names in place of numbers, another one for each life; so do others who ask
what groups have committed. Several attempts of one of them are under way at a time: these are
paired by "number".

    member     info: {"group"}: it begins
    rebalance  info: {"assigned", "revoked", "lost": [key, ...], "generation"}: as it was told
    take       asks for records; ok {"key", "offsets": [...], "values": [...]}: was handed them out
    commit     {"number", "group", "member_id", "generation", "offsets": [[key, offset], ...]}: one
               attempt to commit; -1: of no generation. Completed {"number"}
    committed  {"number", "group"}: asks what is committed; ok {"number", "offsets":
               [[key, offset or null], ...]}
    idle, mute info: {"seconds"}: it asks for nothing; no coordinator hears it, but late
    leave      info: from now on it gives everything up
    crash      info: it has ended without leaving the group
    gone       info: it has left, or failed
    behind     process "watch", info: {"group", "keys": [[key, committed, end], ...]}: in the end

Members of groups that move what fails have names, too, another one for each life; "mute", "leave",
"crash" and "gone" are as above. A record is named by where it stood first, by key and offset; its
"fate" is a word of `record_fate.py`. Several attempts to handle one are under way at a time in a
member, and are paired by "number".

    retry-group   process "watch", ok: {"group", "keys": [...], "attempts", "is_exactly_once",
               "pauses": [seconds, ...], "can_reject", "commit"}: a group that reads all of these
               from the beginning; the attempts of its policy, and the shortest pause after the
               first, the second, ...; without "can_reject" what is to be rejected fails like other
               records; how it commits, where it is asked
    worker     info: {"group"}: a member of such a group begins
    holds      info: {"assigned", "revoked", "lost": [key, ...], "generation"}: as it was told
    handle     {"number", "key", "offset", "value", "fate", "attempt", "is_back"}: an attempt, from
               1 on; "is_back": read from the topic of retries; there also "due", "at": when it was
               due and delivered, as the record says. Completed {"number", "end": "done" | "moved" |
               "letter"}; ok: it ended so; fail: it has no effect for certain, as its transaction
               was aborted or another member has the record; info: unknown, as where the SDK moves
               the record
    left       process "watch", ok: {"group", "lags": [[key, committed, end], ...],
               "pending": [offset, ...]}: when fresh members had time to do all: what they have not
               done, and what waits in the topic of retries; fail: no answer
    letters    process "watch", ok: {"group", "rows": [[at, key, offset, value, fate, attempts or
               null, error], ...]}: all dead letters, at the end, by their offsets; fail: no answer
    results    process "watch", ok: {"group", "rows": [[[key, offset], key, offset, value, fate],
               ...]}: all results of a group that is exactly once: where each stands, and of what
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

NEMESIS, WATCH, NODE, RUN = "nemesis", "watch", "node", "run"  # processes that are no clients
ACKS_ALL = -1
FILE_NAME = "history.jsonl"
NAMED_SEND = "run"  # as a send under a name is counted, apart from others: many are broken off

Process: TypeAlias = int | str


class Type(StrEnum):
    """`FAIL`: it certainly did not happen. `INFO`: unknown; it may have happened, or may yet."""

    INVOKE = "invoke"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Attributes:
    index: its number in the history, from 0.
    time: seconds since the run began, by the one clock of the run.
    process: a client's number, from 0; or the name of what is no client.
    f: what is done, from the list above.
    node: of which the event tells, where it is about one.
    error: what the client was told, name first.
    """

    index: int
    time: float
    process: Process
    type: Type
    f: str
    value: Any = None
    node: int | None = None
    error: str | None = None


class BadHistory(Exception):
    """A file that is no history: names the file, the line and what is wrong with it."""


_decoder = msgspec.json.Decoder(Event)
_encode = msgspec.json.Encoder().encode


def encode_line(event: Event) -> bytes:
    return _encode(event) + b"\n"


def read_history(path: Path) -> list[Event]:
    """
    Raises:
        BadHistory: a line that is no event. A torn last line is what a killed run leaves: ignored.
    """
    with path.open("rb") as file:
        return list(decode_lines(file, name=str(path)))


def decode_lines(lines: Iterable[bytes], *, name: str) -> Iterator[Event]:
    for number, line in enumerate(lines, 1):
        try:
            yield _decoder.decode(line)
        except msgspec.DecodeError as error:
            if not line.endswith(b"\n"):
                return
            raise BadHistory(f"{name}:{number}: {error}") from error
