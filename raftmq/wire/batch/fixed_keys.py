"""Keys at fixed places, with which the map of a directory begins: found without decoding it. Pure.

Owns their layout. All are optional, and stand in this order, at full width:

     CC 80 | CE digest u32 | CC 81 | CF generation u64   of a named producer
     CC 82 | CE u32                                      CRC-32C of the head (`head`)
     CC 83 | CF u64                                      due time of what is scheduled, ms
     CC 84 | CF u64                                      the original that a delivery settles
     CC 85 | 92 | CF u64 | CF u64                        what a copy replaces, the first original
     00 | chunks                                         the first key of all (`directory`)

Invariants:
1. In another place or form these keys mean nothing, as to the readers that came before them.
2. The due time stands only behind the CRC of the head, and the last two only behind the due time.
3. Without a due time nothing stands behind the chunks.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from raftmq.wire.batch.header import (
    COLUMNS_BIT,
    CRC_START,
    DIGEST_MAX,
    GENERATION_MAX,
    HEADER_SIZE,
    Account,
    BatchHeader,
)

if TYPE_CHECKING:
    from raftmq.wire.batch.header import Buffer

CHUNKS_KEY = 0
DIGEST_KEY, GENERATION_KEY, CHECK_KEY = 128, 129, 130
DUE_KEY, DELIVERS_KEY, REPLACES_KEY = 131, 132, 133

LENGTH = Struct(">I")  # of the directory, in front of its map
DIRECTORY_START = HEADER_SIZE + LENGTH.size  # of its map, in the batch
FIXMAP, FIXMAP_END = 0x80, 0x90
_FIXARRAY = 0x90
_UINT8, _UINT32, _UINT64 = 0xCC, 0xCE, 0xCF
_U64 = Struct(">Q")
U64_MAX = (1 << 64) - 1
# Entries of the map, markers, digest, markers, generation, what comes next.
_ACCOUNT = Struct(">B3sI3sQ3s")
_BEFORE_DIGEST = bytes([_UINT8, DIGEST_KEY, _UINT32])
_BEFORE_GENERATION = bytes([_UINT8, GENERATION_KEY, _UINT64])
_BEFORE_CHECK = bytes([_UINT8, CHECK_KEY, _UINT32])
_BEFORE_DUE = bytes([_UINT8, DUE_KEY, _UINT64])
_BEFORE_DELIVERS = bytes([_UINT8, DELIVERS_KEY, _UINT64])
_BEFORE_REPLACES = bytes([_UINT8, REPLACES_KEY, _FIXARRAY + 2, _UINT64])
_BEFORE_FIRST = bytes([_UINT64])
_BEFORE_CHUNKS = bytes([CHUNKS_KEY])
ACCOUNT_END = DIRECTORY_START + _ACCOUNT.size  # bytes of a batch to read for an account
# How nearly every directory begins; then come the CRC and the key of the chunks.
_CHECK_FIRST = bytes([FIXMAP + 2, *_BEFORE_CHECK])
_CHECK_FIRST_END = len(_CHECK_FIRST) + LENGTH.size + 1
_ROOM_FOR_CHECK = _BEFORE_CHECK + bytes(LENGTH.size)
_USUAL = _CHECK_FIRST + bytes(LENGTH.size)
# First bytes of maps: only the chunks, the CRC of the head, an account, both, and a due time, too.
_ONLY_COUNT, _CHECK_COUNT, _ACCOUNT_COUNT, _BOTH_COUNT, _DUE_COUNT = range(FIXMAP + 1, FIXMAP + 6)
# A map with a due time begins with no lower byte; nearly all maps do.
MARKED_COUNT_MIN = _ACCOUNT_COUNT
# Where the key of the due time stands in a map: behind the CRC of the head, and behind both.
_DUE_PLACES = _CHECK_FIRST_END, _ACCOUNT.size + LENGTH.size + 1
_COLUMNS = COLUMNS_BIT >> 8  # in the first byte of the attributes


class FixedKeys(NamedTuple):
    """What the keys say; None: the key is not there.

    Attributes:
        check_at: where the CRC of the head stands in the map.
        due_ms: when it is, or was, to be delivered.
        delivers: offset of the original that this delivery settles.
        replaces: offset of the scheduled batch that this copy stands in for.
        first: offset of the first original of this copy.
        chunks_at: where the value of key 0 begins in the map.
        more: how many keys stand behind the chunks.
    """

    account: Account | None
    check_at: int | None
    due_ms: int | None
    delivers: int | None
    replaces: int | None
    first: int | None
    chunks_at: int
    more: int


def pack_fixed_keys(
    account: Account | None = None,
    *,
    has_check: bool = True,
    due_ms: int | None = None,
    delivers: int | None = None,
    copy_of: tuple[int, int] | None = None,
    more: int = 0,
) -> bytes:
    """The map up to the key of the chunks, with room for the CRC of the head.

    Args:
        copy_of: what the copy replaces, and the first original.
        more: how many keys will follow behind the chunks.
    """
    if account is None and has_check and due_ms is None:  # nearly all
        return _USUAL
    said = b""
    if account is not None:
        generation, digest, _ = account  # the partition count stands in the fence only
        assert 0 <= digest <= DIGEST_MAX, digest
        assert 0 <= generation <= GENERATION_MAX, generation
        said = b"".join(
            (_BEFORE_DIGEST, LENGTH.pack(digest), _BEFORE_GENERATION, generation.to_bytes(8, "big"))
        )
    check = _ROOM_FOR_CHECK if has_check else b""
    scheduled = () if due_ms is None else _pack_scheduled(due_ms, delivers, copy_of)
    assert has_check or due_ms is None, "all that is scheduled has the CRC of the head"
    count = 1 + 2 * (account is not None) + has_check + len(scheduled) + more
    return b"".join((bytes((FIXMAP + count,)), said, check, *scheduled))


def _pack_scheduled(
    due_ms: int, delivers: int | None, copy_of: tuple[int, int] | None
) -> list[bytes]:
    packed = [_BEFORE_DUE + _U64.pack(due_ms)]
    if delivers is not None:
        packed.append(_BEFORE_DELIVERS + _U64.pack(delivers))
    if copy_of is not None:
        replaces, first = copy_of
        packed.append(_BEFORE_REPLACES + _U64.pack(replaces) + _BEFORE_FIRST + _U64.pack(first))
    return packed


def read_fixed_keys(packed: memoryview) -> FixedKeys | None:
    """Those of a directory's map; None: it does not begin as ours do."""
    at, count = 1, 1
    account = _account_at(packed, 0) if len(packed) >= _ACCOUNT.size else None
    if account is not None:
        at, count = _ACCOUNT.size - len(_BEFORE_CHECK), 3
    check_at = due_ms = delivers = replaces = first = None
    if _number(packed, at, _BEFORE_CHECK, LENGTH) is not None:
        check_at, at, count = at + 3, at + 7, count + 1
        due_ms = _number(packed, at, _BEFORE_DUE, _U64)
    if due_ms is not None:
        at, count = at + 11, count + 1
        if (delivers := _number(packed, at, _BEFORE_DELIVERS, _U64)) is not None:
            at, count = at + 11, count + 1
        replaces = _number(packed, at, _BEFORE_REPLACES, _U64)
        first = _number(packed, at + 12, _BEFORE_FIRST, _U64)
        if replaces is None or first is None:
            replaces = first = None
        else:
            at, count = at + 21, count + 1
    if packed[at : at + 1] != _BEFORE_CHUNKS or not FIXMAP <= packed[0] < FIXMAP_END:
        return None
    more = packed[0] - FIXMAP - count
    if more < 0 or (more and due_ms is None):
        return None
    return FixedKeys(account, check_at, due_ms, delivers, replaces, first, at + 1, more)


def _number(packed: memoryview, at: int, before: bytes, form: Struct) -> int | None:
    """The one that stands there, behind these bytes."""
    start = at + len(before)
    if packed[at:start] != before or len(packed) < start + form.size:
        return None
    (number,) = form.unpack_from(packed, start)
    return int(number)


def entries_at(packed: memoryview) -> int | None:
    """Where the value of key 0 begins in the map, and goes on to its end; None: it is to be looked
    for."""
    # Forms of today first, which need not be taken apart.
    count = packed[0] if packed else 0
    if count == _CHECK_COUNT and len(packed) >= _CHECK_FIRST_END:
        is_usual = packed[: len(_CHECK_FIRST)] == _CHECK_FIRST
        if is_usual and packed[_CHECK_FIRST_END - 1] == CHUNKS_KEY:
            return _CHECK_FIRST_END
    if count == _ONLY_COUNT and packed[1:2] == _BEFORE_CHUNKS:
        return 2
    if count == _ACCOUNT_COUNT and len(packed) > _ACCOUNT.size and _account_at(packed, 0):
        return _ACCOUNT.size - len(_BEFORE_CHECK) + 1
    if count == _BOTH_COUNT and _is_check_behind_account(packed):
        at = _ACCOUNT.size + LENGTH.size
        return at + 1 if packed[at] == CHUNKS_KEY else None
    keys = read_fixed_keys(packed)
    return None if keys is None or keys.more else keys.chunks_at


def _is_check_behind_account(packed: memoryview) -> bool:
    is_long = len(packed) > _ACCOUNT.size + LENGTH.size
    return is_long and packed[0] == _BOTH_COUNT and _account_at(packed, 0) is not None


def may_be_marked(buffer: Buffer, position: int) -> bool:
    """Whether a due time may stand in the columns batch at `position`: a look at two places."""
    start = position + DIRECTORY_START
    if len(buffer) <= start + _DUE_PLACES[1] or buffer[start] < MARKED_COUNT_MIN:
        return False
    first, second = _DUE_PLACES
    return buffer[start + first] == DUE_KEY or buffer[start + second] == DUE_KEY


def is_marked(buffer: Buffer, position: int) -> bool:
    """Whether a due time, be it right or wrong, does stand in that batch; see `may_be_marked`."""
    if not may_be_marked(buffer, position):
        return False
    start = position + DIRECTORY_START
    (length,) = LENGTH.unpack_from(buffer, position + HEADER_SIZE)
    keys = read_fixed_keys(memoryview(buffer)[start : start + length])
    return keys is not None and keys.due_ms is not None


def read_account(buffer: Buffer, position: int, header: BatchHeader) -> Account | None:
    """The account of a named producer in the columns batch at `position`, if it has one.

    Needs only `ACCOUNT_END` bytes of the batch; `read_directory` checks the whole directory.
    """
    # Kafka's encoding has no directory.
    if not header.is_columns or min(header.size, len(buffer) - position) < ACCOUNT_END:
        return None
    start = position + DIRECTORY_START
    if buffer[start] == _DUE_COUNT and not header.is_scheduled:  # keys of nobody
        return None
    return _account_at(buffer, start)


def _account_at(buffer: Buffer, position: int) -> Account | None:
    count, before, digest, between, generation, following = _ACCOUNT.unpack_from(buffer, position)
    if count in (_BOTH_COUNT, _DUE_COUNT):
        is_ours = following == _BEFORE_CHECK
    else:
        is_ours = count == _ACCOUNT_COUNT and following[0] == CHUNKS_KEY
    # Else not written by our encoder: keys in another place are ignored.
    if not is_ours or (before, between) != (_BEFORE_DIGEST, _BEFORE_GENERATION):
        return None
    return Account(generation, digest) if generation <= GENERATION_MAX else None


def check_position(buffer: Buffer, position: int) -> int | None:
    """Where the CRC of the head stands in the batch at `position`; None: it has none. Needs no more
    bytes of it than its head has."""
    start, view = position + DIRECTORY_START, memoryview(buffer)
    if len(view) - start < _CHECK_FIRST_END or not view[position + CRC_START] & _COLUMNS:
        return None
    (length,) = LENGTH.unpack_from(buffer, position + HEADER_SIZE)
    packed = view[start : start + length]
    if packed[: len(_CHECK_FIRST)] == _CHECK_FIRST and len(packed) >= _CHECK_FIRST_END:
        return start + len(_CHECK_FIRST)
    if _is_check_behind_account(packed):
        return start + _ACCOUNT.size
    keys = read_fixed_keys(packed)
    return None if keys is None or keys.check_at is None else start + keys.check_at
