"""What a node needs of its machine, tried before a start touches anything, and by `--check`.

Owns the tries: the directory can be made or written, all addresses can be listened on, the limits
of the process are not too low, and for `--check` the disk has room. Leaves nothing behind. Problems
are named together.
"""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import click
import trio

from raftmq.broker.meta import check_directory
from raftmq.cli.nodes.node_settings import failure
from raftmq.cli.nodes.startup_hints import ListeningNetwork, disk_advice, lock_holder
from raftmq.cli.terminal.exits import CommandError, ExitCode
from raftmq.disk.files import OsFiles, allow_many_files
from raftmq.errors import DirectoryInUse, RaftmqError
from raftmq.rpc.protocol import CONNECTIONS_LEAST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from raftmq.broker.settings import BrokerSettings
    from raftmq.model import Address

# Below, some hundreds of partitions or connections use up all of them: Linux's default is 1024.
DESCRIPTORS_FEW = 4096
# Below, there is no start: an idle node of three has 28 open, and the first connections and logs
# (CONNECTIONS_LEAST of each) come on top.
DESCRIPTORS_LEAST = 28 + 2 * CONNECTIONS_LEAST
# Of the file system, free: a start may write the journal, meta.json and a checkpoint.
START_BLOCKS = 3
# Address space is taken long before memory: an idle node has 400 MB of it, and each thread adds a
# stack of 8 MB, and may add a memory pool of 64 MB.
ADDRESS_SPACE_LITTLE = 2 << 30
ANOTHER_PROCESS = "another process"


def check_start(settings: BrokerSettings, *, is_trial: bool) -> str:
    """
    Args:
        is_trial: by `--check`, which ends with 2 where only the machine is at fault, too, and calls
            a full disk a problem. A start only warns of it: a node that comes up on one deletes
            what retention no longer keeps.

    Returns:
        Which process runs on the directory, as far as the system shows it; "" if none does. Its
        addresses are not tried then: they would be found taken by the node itself.

    Raises:
        CommandError: one line for each problem; exit code 2 if the directory is another's.
    """
    problems, holder = list[str](), ""
    code = ExitCode.USAGE if is_trial else ExitCode.FAILED
    files, directory = OsFiles(read_only=True), settings.directory
    try:
        holder = _holder(files, directory)
        check_directory(files, directory, (settings.cluster_id, settings.node_id))
        problems += _directory_problems(directory)
        problems += _descriptor_problems()
        full = _space_problems(directory)
        if is_trial:
            problems += full
        else:
            tell_warnings(full)
    except RaftmqError as error:
        found = failure([error], settings)
        problems.append(str(found))
        code = max(code, found.exit_code)  # 2 for wrong settings, above 1 for the machine
    if not holder:
        problems += trio.run(_address_problems, settings)
    if problems:
        raise CommandError("\n".join(problems), code)
    return holder


def warn(settings: BrokerSettings) -> None:
    """Say on stderr what works and is unwise, of the settings and of the limits."""
    tell_warnings((*settings.warnings, *limit_warnings()))


def tell_warnings(warnings: Iterable[str]) -> None:
    """A line on stderr for each."""
    for warning in warnings:
        with suppress(OSError):  # stderr is closed or full: no reason not to serve
            click.echo(f"raftmq: warning: {warning}", err=True)


def limit_warnings() -> Iterator[str]:
    """Limits of this process that a node soon reaches: one line each."""
    descriptors = allow_many_files()
    if DESCRIPTORS_LEAST <= descriptors < DESCRIPTORS_FEW:
        yield (
            f"few file descriptors: limit={descriptors}, raise it (LimitNOFILE, ulimit -n) to 65536"
            " or more"
        )
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < ADDRESS_SPACE_LITTLE:
        yield (
            f"little address space: limit={limit >> 20} MiB, raise it (LimitAS, ulimit -v) to"
            f" {ADDRESS_SPACE_LITTLE >> 20} MiB or more, or threads and requests may find no room"
        )


def _descriptor_problems() -> Iterator[str]:
    descriptors = allow_many_files()
    if descriptors < DESCRIPTORS_LEAST:
        yield (
            f"too few file descriptors: limit={descriptors}, a start needs {DESCRIPTORS_LEAST}:"
            " raise it (LimitNOFILE, ulimit -n) to 65536 or more"
        )


def _directory_problems(directory: Path) -> Iterator[str]:
    """Whether this user could write there; where it is missing, make it in the nearest directory
    that exists."""
    found = _nearest(directory)
    is_new = found != directory
    try:
        if is_new:
            # Tried, as permissions do not say all: in /proc not even root makes anything.
            os.rmdir(mkdtemp(prefix=".raftmq-check-", dir=found))  # noqa: PTH106
        elif not os.access(found, os.W_OK | os.X_OK, effective_ids=True):
            is_read_only = os.statvfs(found).f_flag & os.ST_RDONLY  # as after a failure of its disk
            number = errno.EROFS if is_read_only else errno.EACCES
            raise OSError(number, os.strerror(number))
    except OSError as error:
        what = f"cannot be made in {found}" if is_new else "cannot be written"
        advice = disk_advice(error, found, is_new=is_new)
        yield f"node.directory = {directory}: {what}: {error.strerror}{advice}"


def _nearest(directory: Path) -> Path:
    """The directory, or where it is missing the next one above it that exists."""
    places = (directory, *directory.absolute().parents)
    # A symbolic link to nothing is there, too: no directory can be made in its place.
    return next(one for one in places if os.path.lexists(one))


def _space_problems(directory: Path) -> Iterator[str]:
    with suppress(OSError):  # it cannot be looked at, which is a problem of the directory
        space = os.statvfs(_nearest(directory))
        free = space.f_bavail if os.geteuid() else space.f_bfree  # the rest is kept for root
        if space.f_blocks and free < START_BLOCKS:  # 0 blocks: a file system without a size
            reason = os.strerror(errno.ENOSPC)
            yield f"node.directory = {directory}: {reason}; the disk is full: free some space on it"


def _holder(files: OsFiles, directory: Path) -> str:
    """Which process has locked the directory.

    Not every file system shows its locks in /proc/locks under the device of its files (btrfs), so
    the lock is tried as well: read-only, where it is there, and for a moment.
    """
    lock = directory / ".lock"
    if not files.exists(lock):
        return ""
    try:
        files.lock(lock)
    except DirectoryInUse:
        return lock_holder(lock) or ANOTHER_PROCESS
    return ""


async def _address_problems(settings: BrokerSettings) -> list[str]:
    network, problems = ListeningNetwork(settings), list[str]()
    for address in _own_addresses(settings):
        try:
            for listener in await network.open_listeners(address):
                await listener.aclose()
        except RaftmqError as error:
            problems.append(str(error))
    return problems


def _own_addresses(settings: BrokerSettings) -> Iterator[Address]:
    yield from (one.bind for one in settings.listeners)
    if settings.is_voter:
        yield settings.voters[settings.node_id]
