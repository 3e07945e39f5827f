"""`raftmq topic create`, `alter` and `delete`: check what was typed, then change it.

Mistyped names, keys and values are refused before a broker is asked. What a new replication factor
moves is in `moves/topic_move.py`.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from raftmq.cli.clusters.connected import run_admin
from raftmq.cli.moves.topic_move import FactorChange, alter_factor
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.cli.terminal.output import Row, check_can_ask, confirm, write_json
from raftmq.cli.terminal.times import SIZE_FORM, parse_size
from raftmq.client.administration.checks import check_changes, check_config, check_topic
from raftmq.errors import InvalidConfig, RaftmqError, UnknownTopicOrPartition
from raftmq.topic_config import MIN_ISR
from raftmq.words import DURATION_FORM, counted, parse_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raftmq.client.administration.admin import Admin
    from raftmq.client.administration.results import CreatedTopic, TopicSummary


class NewTopicOptions(NamedTuple):
    """A new topic, as it was typed; None leaves the choice to the cluster."""

    name: str
    partitions: int | None
    replication_factor: int | None
    settings: Sequence[str]


def create_topic(
    wanted: NewTopicOptions,
    bootstrap: str | None,
    timeout: float,
    *,
    if_not_exists: bool,
    as_json: bool,
) -> int:
    check_topic(wanted.name)
    with naming_units():
        config = check_config(parse_settings(wanted.settings))

    async def create(admin: Admin) -> CreatedTopic:
        return await admin.create_topic(
            wanted.name,
            partitions=wanted.partitions,
            replication_factor=wanted.replication_factor,
            config=config,
            if_not_exists=if_not_exists,
        )

    made = run_admin(create, bootstrap, timeout)
    if as_json:
        write_json([_created_object(made)])
        return ExitCode.OK
    if not made.is_new:
        _say(f"topic {made.name} exists already, and stays as it is")
        _warn(made.name, made.warning)
        return ExitCode.OK
    factor = f"replication factor {made.replication_factor}"
    if wanted.replication_factor is None:
        factor += " (the cluster's choice)"
    _say(f"topic {made.name}: {counted(made.partition_count, 'partition')}, {factor}")
    _warn(made.name, made.warning)
    return ExitCode.OK


def alter_topic(
    name: str,
    partitions: int | None,
    settings: Sequence[str],
    resets: Sequence[str],
    factor: FactorChange | None,
    bootstrap: str | None,
    timeout: float,
    *,
    as_json: bool,
) -> int:
    check_topic(name)
    changes = _changes(settings, resets)
    if not changes and partitions is None and factor is None:
        raise CommandError(
            "nothing to change: give -c KEY=VALUE, --reset KEY, --partitions N or"
            " --replication-factor N",
            ExitCode.USAGE,
        )
    if factor is not None and factor.is_dry and (changes or partitions is not None):
        raise CommandError(
            "--dry-run shows what --replication-factor would move: give that alone", ExitCode.USAGE
        )

    async def alter(admin: Admin) -> int:
        # Keys first: they change together or not at all, before the topic grows, which cannot be
        # undone.
        if changes:
            await admin.alter_config(name, changes)
            told = [f"{key} = {_told(value)}" for key, value in changes.items()]
            row: Row = {"name": name, "config": changes}
            _report(f"topic {name}: {', '.join(told)}", row, as_json=as_json)
        if partitions is not None:
            await admin.create_partitions(name, partitions)
            row = {"name": name, "partitions": partitions}
            _report(f"topic {name}: {counted(partitions, 'partition')}", row, as_json=as_json)
        if factor is not None:
            return await alter_factor(admin, name, factor, as_json=as_json)
        # Only these two decide whether the loss of one broker stops the topic.
        if partitions is not None or MIN_ISR in changes:
            with suppress(RaftmqError):  # the change is done; only its warning is missing
                _warn(name, (await admin.describe_topic(name)).warning)
        return ExitCode.OK

    return run_admin(alter, bootstrap, timeout)


def delete_topics(
    names: Sequence[str], bootstrap: str | None, timeout: float, *, is_sure: bool, as_json: bool
) -> int:
    """All of them must be there before the first one is deleted."""
    names = list(dict.fromkeys(names))
    for name in names:
        check_topic(name)
    check_can_ask(f"delete {', '.join(names)}", is_sure=is_sure)

    async def look(admin: Admin) -> list[TopicSummary]:
        known = {one.name: one for one in await admin.list_topics()}
        missing = [name for name in names if name not in known]
        if missing:
            rest = "; nothing was deleted" if len(names) > len(missing) else ""
            raise UnknownTopicOrPartition(
                f"no topic {', '.join(missing)}: `raftmq topic list` shows what there is{rest}"
            )
        return [known[name] for name in names]

    async def delete(admin: Admin) -> None:
        for name in names:
            await admin.delete_topic(name)
            _report(f"topic {name}: deleted", {"name": name, "deleted": True}, as_json=as_json)

    # A connection of its own: the person may take minutes to answer.
    found = run_admin(look, bootstrap, timeout)
    told = [f"{one.name} ({counted(one.partition_count, 'partition')})" for one in found]
    confirm(f"Delete {', '.join(told)} with all records, for good?", is_sure=is_sure)
    run_admin(delete, bootstrap, timeout)
    return ExitCode.OK


def parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """Parse `-c key=value`, durations and sizes to numbers; the last one of a key wins."""
    wrong = [text for text in settings if not text.partition("=")[1]]
    if wrong:
        raise CommandError(
            f"-c {wrong[0]}: expected KEY=VALUE, like -c retention.ms=7d", ExitCode.USAGE
        )
    parts = (text.partition("=") for text in settings)
    return {key.strip(): _number_of(key.strip(), value.strip()) for key, _, value in parts}


def _number_of(key: str, text: str) -> str:
    """`7d` of a key in .ms as milliseconds, `64MiB` of one in .bytes as bytes, else the text."""
    found = None
    if key.endswith(".ms"):
        found = parse_duration(text)
    elif key.endswith(".bytes"):
        found = parse_size(text)
    return text if found is None else str(found)


@contextmanager
def naming_units() -> Iterator[None]:
    """Says of a value that is no number how durations and sizes are written."""
    try:
        yield
    except InvalidConfig as error:
        raise InvalidConfig([_with_form(problem) for problem in error.problems]) from None


def _with_form(problem: str) -> str:
    key = problem.partition(" = ")[0]
    if not problem.endswith("expected a whole number"):
        return problem
    form = {"ms": DURATION_FORM, "bytes": SIZE_FORM}.get(key.rpartition(".")[2])
    return f"{problem}, or {form}" if form else problem


def _changes(settings: Sequence[str], resets: Sequence[str]) -> dict[str, str | None]:
    kept = parse_settings(settings)
    both = [key for key in resets if key in kept]
    if both:
        raise CommandError(f"{both[0]}: both set and reset: choose one", ExitCode.USAGE)
    changes: dict[str, str | None] = {**kept, **dict.fromkeys(resets)}
    with naming_units():
        return check_changes(changes) if changes else {}


def _created_object(made: CreatedTopic) -> Row:
    return {
        "name": made.name,
        "topic_id": made.topic_id.hex(),
        "partitions": made.partition_count,
        "replication_factor": made.replication_factor,
        "is_new": made.is_new,
        "warning": made.warning or None,
    }


def _told(value: str | None) -> str:
    return "its default" if value is None else value


def _warn(name: str, warning: str) -> None:
    if warning:
        sys.stderr.write(f"raftmq: warning: topic {name}: {warning}\n")


def _report(line: str, row: Row, *, as_json: bool) -> None:
    """At once, in the middle of several changes: what was printed has been done."""
    if as_json:
        write_json([row])
    else:
        _say(line)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
