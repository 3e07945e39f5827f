"""Compression codecs of a batch: none, gzip, lz4 frame, zstd; decompression within a size limit.

Owns Kafka's codec ids and the optional packages behind two of them, which are imported when first
used. Invariant: decompression stops one byte after the allowed length, so that no stream (a zip
bomb) costs more memory than its batch claims; a stream that ends early, continues after its end or
does not have the claimed length is corrupt.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Protocol

from raftmq.errors import UnsupportedCompression
from raftmq.model import Compression
from raftmq.wire.batch.header import COMPRESSION_BITS

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from raftmq.wire.batch.header import Buffer, BytesOrigin

GZIP_WINDOW_BITS = 31  # zlib: the largest window, with gzip header and trailer; writes mtime 0
# The window that RFC 8878 recommends every decoder to support; more would be memory for nothing.
ZSTD_WINDOW_BYTES_MAX = 8 << 20
# First piece of a stream of unknown length; the next ones double, so that a large batch takes few
# pieces and a small one little memory.
PIECE_BYTES = 64 << 10
# Kafka's ids that we have no codec for.
_CODEC_NAMES = {2: "snappy"}


class StreamError(ValueError):
    """A compressed stream is wrong; `decompress` adds the place of its bytes."""


class CompressedStream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def codec_of(attributes: int) -> Compression:
    """The codec in the attribute bits of a batch.

    Raises:
        UnsupportedCompression: raftmq has no codec for that id.
    """
    codec = attributes & COMPRESSION_BITS
    try:
        return Compression(codec)
    except ValueError:  # snappy, which Kafka clients may have sent, or none at all
        name = _CODEC_NAMES.get(codec, "unknown codec")
        raise UnsupportedCompression(f"compression {codec} ({name}) is not supported") from None


def compress(codec: Compression, data: bytes) -> bytes:
    """Deterministic: the same input gives the same bytes, with one version of the package."""
    return _COMPRESS[codec](data)


def decompress(
    codec: Compression,
    data: Buffer,
    origin: BytesOrigin,
    *,
    length: int | None = None,
    length_max: int,
) -> Buffer:
    """The bytes that were compressed; `length`: how many these are, if the batch says so.

    Raises:
        CorruptRecord: the stream is damaged, has another length or exceeds `length_max`.
        UnsupportedCompression: the codec's package is not installed.
    """
    if codec is Compression.NONE:
        return data
    # Refused before any memory is spent (decision 0009).
    if length is not None and length > length_max:
        raise origin.corrupt(f"claims {length} bytes uncompressed, allowed {length_max}")
    try:
        result = _DECOMPRESS[codec](data, length, length_max)
    except StreamError as error:
        raise origin.corrupt(f"{codec.name.lower()} stream: {error}") from error
    _check_length(result, length, length_max, origin)
    return result


def _check_length(result: bytes, length: int | None, length_max: int, origin: BytesOrigin) -> None:
    if length is None and len(result) > length_max:
        raise origin.corrupt(f"more than {length_max} bytes uncompressed")
    if length is not None and len(result) != length:
        got = f"more than {length}" if len(result) > length else str(len(result))
        raise origin.corrupt(f"claims {length} bytes uncompressed, holds {got}")


def _finish(*, ended: bool, full: bool, unused: bytes | None) -> None:
    """Check that a stream has ended, and that nothing follows."""
    if not ended and not full:  # `full`: it was stopped at the limit, which the caller reports
        raise StreamError("ends early")
    if unused:  # bytes that no reader would see, but that the CRC covers
        raise StreamError(f"{len(unused)} bytes after its end")


def _gzip_compress(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=GZIP_WINDOW_BITS)
    return stream.compress(data) + stream.flush()


def _gzip_decompress(data: Buffer, length: int | None, length_max: int) -> bytes:
    stop = (length_max if length is None else length) + 1
    stream = zlib.decompressobj(wbits=GZIP_WINDOW_BITS)
    try:
        result = stream.decompress(data, stop)
    except zlib.error as error:
        raise StreamError(str(error)) from error
    _finish(ended=stream.eof, full=len(result) == stop, unused=stream.unused_data)
    return result


def _lz4_compress(data: bytes) -> bytes:
    # Linked blocks are smaller, but Kafka's Java client refuses them.
    compressed: bytes = _lz4_frame().compress(data, block_linked=False)
    return compressed


def _lz4_decompress(data: Buffer, length: int | None, length_max: int) -> bytes:
    stop = (length_max if length is None else length) + 1
    frame = _lz4_frame().LZ4FrameDecompressor()
    pieces: list[bytes] = []
    total, size = 0, PIECE_BYTES if length is None else stop
    try:
        # `stop` is one over the limit: reaching it means too long.
        while not frame.eof and total < stop:
            pieces.append(frame.decompress(data, max_length=min(size, stop - total)))
            data, total, size = b"", total + len(pieces[-1]), size * 2
            if frame.needs_input:  # all bytes were given: it ends early
                break
    except RuntimeError as error:  # the only error that this package raises
        raise StreamError(str(error)) from error
    _finish(ended=frame.eof, full=total == stop, unused=frame.unused_data)
    return _joined(pieces)


def _zstd_compress(data: bytes) -> bytes:
    compressed: bytes = _zstandard().ZstdCompressor().compress(data)
    return compressed


def _zstd_decompress(data: Buffer, length: int | None, length_max: int) -> bytes:
    zstandard = _zstandard()
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)
    try:
        announced = zstandard.frame_content_size(data)
        if length is None and announced > length_max:
            raise StreamError(f"announces {announced} bytes, allowed {length_max}")
        if length is not None and announced not in (-1, length):  # -1: the frame has no size
            raise StreamError(f"announces {announced} bytes, the batch claims {length}")
        expected = announced if length is None else length
        if expected < 0:  # the frame does not say its size: read in pieces
            return _read_until(
                decompressor.stream_reader(data, read_across_frames=True), length_max
            )
        result: bytes = decompressor.decompress(
            data, max_output_size=expected, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise StreamError(str(error)) from error
    return result


def _read_until(reader: CompressedStream, length_max: int) -> bytes:
    """Read a stream that does not announce its length, in pieces, up to one byte over the limit."""
    pieces: list[bytes] = []
    total, size = 0, PIECE_BYTES
    while total <= length_max:
        piece = reader.read(min(size, length_max + 1 - total))
        if not piece:
            break
        pieces.append(piece)
        total, size = total + len(piece), size * 2
    return _joined(pieces)


def _joined(pieces: list[bytes]) -> bytes:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _lz4_frame() -> ModuleType:
    try:
        import lz4.frame
    except ImportError as error:  # an optional package: batches of other codecs go on
        raise _missing("lz4") from error
    frame: ModuleType = lz4.frame
    return frame


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ImportError as error:  # an optional package: batches of other codecs go on
        raise _missing("zstandard") from error
    return zstandard


def _missing(package: str) -> UnsupportedCompression:
    return UnsupportedCompression(
        f"the package {package} is not installed: pip install 'raftmq[compression]'"
    )


_COMPRESS: dict[Compression, Callable[[bytes], bytes]] = {
    Compression.NONE: lambda data: data,
    Compression.GZIP: _gzip_compress,
    Compression.LZ4: _lz4_compress,
    Compression.ZSTD: _zstd_compress,
}
_DECOMPRESS: dict[Compression, Callable[[Buffer, int | None, int], bytes]] = {
    Compression.GZIP: _gzip_decompress,
    Compression.LZ4: _lz4_decompress,
    Compression.ZSTD: _zstd_decompress,
}
