"""`raftmq log`: options of dump and verify, which read segments on disk without a broker.

Owns options and help texts. The work is in `disks/log_dump` and `disks/log_verify`, imported when a
command runs: they bring the codec and the storage code with them.
"""

from __future__ import annotations

from pathlib import Path

import rich_click as click

from raftmq.cli.terminal.options import epilog_of, output_option

FOLDER = click.Path(path_type=Path)
OFFSET = click.IntRange(min=0)
COUNT = click.IntRange(min=1)


@click.group()
def log() -> None:
    """Read a partition folder without a broker.

    Nothing is ever written, and a broker may be using the folder at the same time.
    """


@log.command(
    epilog=epilog_of("""
    Examples:

    raftmq log dump Partition-0 --from 1200 -n 5

    raftmq log dump Partition-0 --records -o json | jq -r .value

    JSON: one object per line. A batch has segment, position, base_offset, end_offset, bytes,
    records, leader_epoch, base_timestamp, max_timestamp, compression, encoding, producer_id,
    producer_epoch, base_sequence, flags (transactional, control, commit and abort of a marker,
    aborted of a batch, fence, log_append_time); a record has offset, timestamp, key, value, headers
    (a list of name and value), tags; a producer has snapshot (an offset), producer_id,
    producer_epoch, next_sequence, idle_seconds, runs. Bytes are text where they are UTF-8;
    where they are not, key_base64 or value_base64 stands in place of key or value. Timestamps
    are milliseconds since 1970-01-01 UTC, -1 for none.
    """)
)
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--from", "start", type=OFFSET, default=0, metavar="OFFSET", help="Start here.")
@click.option("--to", "end", type=OFFSET, metavar="OFFSET", help="Stop before this offset.")
@click.option("-n", "count", type=COUNT, metavar="N", help="Stop after N batches, or N records.")
@click.option("--records", is_flag=True, help="List the records instead of the batches.")
@click.option("--producers", is_flag=True, help="List what snapshots know of idempotent producers.")
@output_option()
def dump(
    folder: Path,
    start: int,
    end: int | None,
    count: int | None,
    records: bool,
    producers: bool,
    output: str,
) -> int:
    """List the batches of the partition folder DIR, or its records, or its producers.

    Every CRC is checked. Bytes that are no batch are named on stderr and passed over; if
    something sound follows them, the exit code is 1.
    """
    from raftmq.cli.disks.log_dump import Selection, dump_log

    selection = Selection(start, end, count)
    if producers:
        from raftmq.cli.disks.log_dump import dump_producers

        if records:
            raise click.UsageError("--records or --producers, not both")
        return dump_producers(folder, selection, as_json=output == "json")
    return dump_log(folder, selection, records=records, as_json=output == "json")


@log.command(
    epilog=epilog_of("""
    Examples:

    raftmq log verify /var/lib/raftmq

    raftmq log verify Partition-0 -o json | jq 'select(.type == "finding")'

    JSON: one object per line, told apart by type. A finding has severity, folder, file,
    position (a byte), offset, what; a partition has folder, segments, batches, records, bytes,
    log_start_offset, log_end_offset, errors, warnings; the summary comes last and has
    partitions, batches, records, bytes, errors, warnings. What is not known is null.
    """)
)
@click.argument("folder", metavar="DIR", type=FOLDER)
@output_option()
def verify(folder: Path, output: str) -> int:
    """Read every byte below DIR and report what is wrong.

    DIR is a partition folder, a topic folder or a whole data directory. Checked are the CRC of
    every batch and chunk, every record, offsets and epochs from batch to batch and from segment
    to segment, both indexes, the snapshots of producers, and the small files beside them.

    error: something that readers would miss or refuse. warning: something that the log repairs
    or does without, like a torn tail or a damaged index. Exit code 7 if there is an error.
    """
    from raftmq.cli.disks.log_verify import verify_logs

    return verify_logs(folder, as_json=output == "json")
