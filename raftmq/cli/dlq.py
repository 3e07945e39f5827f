"""`raftmq dlq`: options for dead letters of groups: list, show, redrive, purge.

Owns options, help texts, and what is refused before a broker is asked. The work is in `letters/`,
imported when a command runs: it brings the event loop and the client with it.
"""

from __future__ import annotations

import rich_click as click

from raftmq.cli.terminal.options import (
    InOrder,
    connection_options,
    epilog_of,
    output_option,
    yes_option,
)

COUNT = click.IntRange(min=1)
TIME_HELP = "-1h30m is so long ago, 2026-11-21T10:00:00Z a date; milliseconds since 1970 do, too"


@click.group(cls=InOrder)
def dlq() -> None:
    """Dead letters: what groups have set aside, why, and sending it back."""


@dlq.command(
    "list",
    epilog=epilog_of("""
    Examples:

    raftmq dlq list

    raftmq dlq list billing -o json | jq .letters

    JSON: one object per line. It has group, topic, letters (their number), oldest and newest
    (milliseconds since 1970-01-01 UTC), errors (a list of the most frequent ones: error, count).
    """),
)
@click.argument("group", metavar="[GROUP]", required=False)
@output_option()
@connection_options
def list_(group: str | None, output: str, timeout: float, bootstrap: str | None) -> int:
    """List the groups that have dead letters: how many, of when, and with which errors.

    Of a group with more than 100,000 the newest of these are read, and the first one; the others
    are counted by their offsets. What was sent back does not count.

    Exit code 3 if GROUP is given and nothing of it was ever set aside.
    """
    from raftmq.cli.letters.letter_reads import list_groups

    return list_groups(group, bootstrap, timeout, as_json=output == "json")


@dlq.command(
    epilog=epilog_of("""
    Examples:

    raftmq dlq show billing

    raftmq dlq show billing --error timeout --since -1d -n 20

    raftmq dlq show billing -o json | jq -r .value

    JSON: one object per line. It has partition, offset, timestamp (of when it was set aside),
    origin (topic, partition, offset, timestamp), attempts, error, group, redriven (how often it was
    sent back before), key, value, headers (a list of name and value, those of the program), tags.
    Bytes are text where they are UTF-8; where they are not, key_base64 or value_base64 stands in
    place of key or value. What there is not is null.
    """)
)
@click.argument("group", metavar="GROUP")
@click.option(
    "-n",
    "--count",
    type=COUNT,
    metavar="N",
    default=1_000,
    show_default=True,
    help="Only the first N; stderr says if there are more.",
)
@click.option(
    "--error", metavar="TEXT", help="Only those whose error has this in it; capitals do not matter."
)
@click.option("--since", metavar="TIME", help=f"Only those set aside from then on: {TIME_HELP}.")
@click.option("--until", metavar="TIME", help="Only those set aside before.")
@output_option()
@connection_options
def show(
    group: str,
    count: int,
    error: str | None,
    since: str | None,
    until: str | None,
    output: str,
    timeout: float,
    bootstrap: str | None,
) -> int:
    """Show the dead letters of a group, the oldest first: one per line, with where it stood (topic,
    partition and offset), how often it was tried, the error, key and value.

    Long errors, keys and values are cut, and what cannot be printed is escaped; JSON has all of it.

    Exit code 3 if nothing of the group was ever set aside.
    """
    from raftmq.cli.letters.letter_reads import show_letters
    from raftmq.cli.letters.letter_source import filter_of

    wanted = filter_of(error, since, until)
    return show_letters(group, wanted, count, bootstrap, timeout, as_json=output == "json")


@dlq.command(
    epilog=epilog_of("""
    Examples:

    raftmq dlq redrive billing --dry-run

    raftmq dlq redrive billing

    raftmq dlq redrive billing --error timeout -n 10

    raftmq dlq redrive billing --to-topic orders-repaired

    JSON: one object per line, for each topic: group, topic, sent. With --dry-run one for each dead
    letter, as of `show`, with to: the topic.
    """)
)
@click.argument("group", metavar="GROUP")
@click.option("--to-topic", metavar="TOPIC", help="In place of the topics where they stood.")
@click.option(
    "--error", metavar="TEXT", help="Only those whose error has this in it; capitals do not matter."
)
@click.option("-n", "--count", type=COUNT, metavar="N", help="At most N, the oldest ones.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@output_option()
@connection_options
def redrive(
    group: str,
    to_topic: str | None,
    error: str | None,
    count: int | None,
    dry_run: bool,
    output: str,
    timeout: float,
    bootstrap: str | None,
) -> int:
    """Send dead letters back to the topics where they stood, as they were: key, value, headers and
    tags, with the time of now, and a header raftmq.redriven that counts.

    All groups that read these topics get them, not only GROUP. What was sent back is no dead letter
    any more, and is deleted; a second run does not send it again, also if the first one was killed:
    then start one, as it also deletes what that one had sent.
    With --error, dead letters that are not meant stay: those that stand before one that is sent are
    appended again behind all others.

    Exit code 3 if nothing of the group was ever set aside, or a topic is not there any more: then
    nothing is sent. 1 if some are too large for their topic with that header: these stay, and
    stderr names them.
    """
    from raftmq.cli.letters.letter_source import filter_of
    from raftmq.cli.letters.redrive import RedriveOrder, redrive

    wanted, as_json = filter_of(error), output == "json"
    order = RedriveOrder(group, wanted, to_topic, count, is_dry=dry_run, as_json=as_json)
    return redrive(order, bootstrap, timeout)


@dlq.command(
    epilog=epilog_of("""
    Examples:

    raftmq dlq purge billing --dry-run

    raftmq dlq purge billing --before -14d --yes

    JSON: an object with group, topic, letters (how many), deleted (false with --dry-run).
    """)
)
@click.argument("group", metavar="GROUP")
@click.option(
    "--before",
    metavar="TIME",
    help=f"Only those before the first one that is younger: {TIME_HELP}.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@yes_option()
@output_option()
@connection_options
def purge(
    group: str,
    before: str | None,
    dry_run: bool,
    is_sure: bool,
    output: str,
    timeout: float,
    bootstrap: str | None,
) -> int:
    """Delete dead letters of a group for good.

    Those that are set aside while the command runs stay. Asks first; without a terminal it refuses
    unless --yes or --dry-run is given.

    Exit code 3 if nothing of the group was ever set aside.
    """
    from raftmq.cli.letters.purge import purge

    return purge(
        group,
        before,
        bootstrap,
        timeout,
        is_dry=dry_run,
        is_sure=is_sure,
        as_json=output == "json",
    )
