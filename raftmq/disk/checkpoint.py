"""Checkpoint files: small files of named numbers, replaced atomically, checked by a CRC.

    orders-6f1c.../Partition-0 1200
    crc32c 5b0e7a31

Owns the format and the order of steps that makes a replacement atomic: write a temporary file,
sync it, rename it, sync the directory. Text, so that an operator can read it. A file that fails its
CRC reads as None: every caller has a safe answer for "not known".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from raftmq.disk.files import Files

TEMPORARY_SUFFIX = ".tmp"
# Far above any real one (a million partitions), so that a wrong file does not fill the memory. A
# longer one is cut, fails its CRC and reads as None.
CHECKPOINT_BYTES_MAX = 64 << 20


def replace_file(files: Files, path: Path, data: bytes) -> None:
    """After this returns, `path` holds `data` for good; after a crash, the old or the new."""
    prepare_file(files, path, data)
    put_in_place(files, path)


def prepare_file(files: Files, path: Path, data: bytes) -> None:
    """The first half of a replacement: if it fails, nothing has changed."""
    file = files.open(_temporary(path), create=True)
    file.truncate(0)  # a crash may have left an earlier attempt
    file.write(0, [data])
    file.sync()


def put_in_place(files: Files, path: Path) -> None:
    """The second half: if it fails, the old or the new will be found."""
    files.rename(_temporary(path), path)
    files.sync_directory(path.parent)


def _temporary(path: Path) -> Path:
    return path.with_name(path.name + TEMPORARY_SUFFIX)


def read_file(files: Files, path: Path) -> bytes | None:
    """The bytes of `path`, or None if there is no such file."""
    if not files.exists(path):
        return None
    file = files.open(path)
    return file.read(0, min(file.size(), CHECKPOINT_BYTES_MAX))


def pack_checkpoint(offsets: Mapping[str, int]) -> bytes:
    body = "".join(f"{name} {offset}\n" for name, offset in sorted(offsets.items())).encode()
    return body + b"crc32c %08x\n" % crc32c(body)


def write_checkpoint(files: Files, path: Path, offsets: Mapping[str, int]) -> None:
    replace_file(files, path, pack_checkpoint(offsets))


def read_checkpoint(files: Files, path: Path) -> dict[str, int] | None:
    """The values that were written last; None if there is no such file or it is damaged."""
    data = read_file(files, path)
    if data is None:
        return None
    body, separator, seal = data.rpartition(b"crc32c ")
    if not separator or seal != b"%08x\n" % crc32c(body):  # torn, rotten, or not a checkpoint
        return None
    try:
        return dict(_parse_line(line) for line in body.decode().splitlines())
    except ValueError:  # sound by its CRC, but not of this format
        return None


def _parse_line(line: str) -> tuple[str, int]:
    name, _, offset = line.rpartition(" ")
    return name, int(offset)
