"""`raftmq profile`: options to list the named clusters."""

from __future__ import annotations

import sys

import rich_click as click

from raftmq.cli.terminal.exits import ExitCode
from raftmq.cli.terminal.options import InOrder, epilog_of, output_option


@click.group(cls=InOrder)
def profile() -> None:
    """Named clusters, for --profile NAME or $RAFTMQ_PROFILE.

    They stand in ~/.config/raftmq/profiles.toml (or below $XDG_CONFIG_HOME), a table for each. It
    has two keys, and may lack either: bootstrap, addresses as for -b; client_id, the name of these
    commands in the logs of brokers and in groups, else raftmq-cli.

    production = { bootstrap = "host1:9292,host2:9292", client_id = "ops" }
    """


@profile.command(
    "list",
    epilog=epilog_of("""
    Examples:

    raftmq profile list

    raftmq --profile production topic list

    JSON: one object per line, by name. It has name, bootstrap, client_id; null: not set.
    """),
)
@output_option()
def list_(output: str) -> int:
    """List all profiles, and say where they stand."""
    from raftmq.cli.terminal.output import write_json, write_table
    from raftmq.cli.terminal.profiles import profiles_file, read_profiles

    usable, problems = read_profiles()
    profiles = sorted(usable.items())
    for told in problems.values():
        sys.stderr.writelines(f"raftmq: warning: {line}\n" for line in told)
    if output == "json":
        write_json({"name": name, **one._asdict()} for name, one in profiles)
        return ExitCode.OK
    write_table(("profile", "bootstrap", "client id"), [(name, *one) for name, one in profiles])
    sys.stderr.write(f"raftmq: {len(profiles)} in {profiles_file()}\n")
    return ExitCode.OK
