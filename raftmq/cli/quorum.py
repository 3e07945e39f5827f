"""`raftmq quorum`: options to show the metadata quorum (Raft voters), and to verify its disks.

Owns options and help texts. The work is in `clusters/quorum_status` and `disks/quorum_verify`,
imported when a command runs: they bring the event loop and the quorum's code with them.
"""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path

import rich_click as click

from raftmq.cli.clusters.bootstrap import (
    bootstrap_addresses,
    bootstrap_option,
    bootstrap_way_out,
)
from raftmq.cli.terminal.options import output_option

FOLDER = click.Path(path_type=Path)


@click.group()
def quorum() -> None:
    """The metadata quorum: how it is, and what is on its disks."""


@quorum.command(
    epilog=cleandoc("""
    Examples:

    raftmq quorum status

    raftmq quorum status -b host1:9293,host2:9293,host3:9293

    raftmq quorum status -o json | jq 'select(.type == "summary") | .leader_id'

    JSON: one object per line, told apart by type. A voter has address, cluster_id, node_id, state
    (leader, candidate, follower), leader_id, term, commit_index, applied_index, last_index,
    journal_bytes, snapshot (index, term, size_bytes), voters (node_id, is_connected, standing,
    lag), observers (node_id, lag), leader_address; an unreachable has address, what; the summary
    comes last and has is_healthy, leader_id, term, what, leader_address. What is not known is null.
    """)
)
@bootstrap_option()
@output_option()
def status(bootstrap: str | None, output: str) -> int:
    """Ask voters how the quorum is.

    An address may be that of a broker's listener for clients: it says where the voters are. Or it
    is a voter's own, from quorum.voters in the settings, which works also while no broker serves.
    Every voter is asked, and every answer shown: the leader's first, then by term. A lag is the
    number of commands that a node is behind the voter that answers; only a leader knows it of
    other voters, and each voter of the observers that it serves.

    Exit code 5 if no voter answers, 7 if those that do know of no leader with a majority.
    """
    from raftmq.cli.clusters.quorum_status import show_status

    addresses, way_out = bootstrap_addresses(bootstrap), bootstrap_way_out(bootstrap)
    return show_status(addresses, way_out, as_json=output == "json")


@quorum.command(
    epilog=cleandoc("""
    Examples:

    raftmq quorum verify /var/lib/raftmq/quorum

    raftmq quorum verify /var/lib/raftmq/quorum -o json | jq 'select(.type == "finding")'

    JSON: one object per line, told apart by type. A finding has severity, file, what; the journal
    has cluster_id, node_id, standing, start_count, term, voted_for, commit_index, first_index,
    last_index, entries, segments, batches, bytes, torn_bytes; a snapshot has file, cluster_id,
    index, term, slices, bytes; the summary comes last and has errors, warnings.
    """)
)
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--observer", is_flag=True, help="DIR is an observer's, which keeps no journal.")
@output_option()
def verify(folder: Path, observer: bool, output: str) -> int:
    """Read every byte of a quorum directory and report what is wrong.

    DIR is the directory of one voter, with its journal and its snapshots. Checked are every batch
    and record of the journal, every slice of the snapshots, and whether the two belong together.
    What the commands mean is not checked. Nothing is written; the voter should be stopped, as a
    write that is under way looks torn.

    error: the voter would refuse to start. warning: something that its next start mends, like a
    torn tail. Exit code 1 if there is an error, 3 if there is neither journal nor snapshot, which
    is no error of an observer that has just begun.
    """
    from raftmq.cli.disks.quorum_verify import verify_quorum

    return verify_quorum(folder, is_observer=observer, as_json=output == "json")
