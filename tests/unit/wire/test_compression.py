"""Codecs: what they give back, and what a hostile stream gets."""

from __future__ import annotations

import gzip
import io
import sys
import zlib

import lz4.frame
import pytest
import zstandard

from raftmq.errors import CorruptRecord, UnsupportedCompression
from raftmq.model import Compression
from raftmq.wire.batch.compression import PIECE_BYTES, codec_of, compress, decompress
from raftmq.wire.batch.header import BytesOrigin

ORIGIN = BytesOrigin(61, "segment")
DATA = bytes(range(256)) * 2000  # several pieces long
CODECS = [Compression.GZIP, Compression.LZ4, Compression.ZSTD]
codecs = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)


@codecs
@pytest.mark.parametrize("length", [len(DATA), None])
def test_round_trip(codec: Compression, length: int | None) -> None:
    """With or without a claimed length, the data comes back (A2.6)."""
    assert len(DATA) > PIECE_BYTES
    packed = compress(codec, DATA)
    assert decompress(codec, packed, ORIGIN, length=length, length_max=len(DATA)) == DATA
    assert decompress(codec, memoryview(packed), ORIGIN, length_max=len(DATA)) == DATA


@codecs
def test_output_is_deterministic(codec: Compression) -> None:
    """Nothing of the time or the machine gets into the bytes."""
    assert compress(codec, DATA) == compress(codec, DATA)
    assert compress(Compression.GZIP, DATA)[4:8] == bytes(4)  # gzip's mtime


def test_others_read_what_is_written() -> None:
    """The streams are the formats that Kafka clients expect, and theirs are read."""
    assert gzip.decompress(compress(Compression.GZIP, DATA)) == DATA
    packed = compress(Compression.LZ4, DATA)
    assert lz4.frame.decompress(packed) == DATA
    assert not lz4.frame.get_frame_info(packed)["block_linked"]
    assert zstandard.decompress(compress(Compression.ZSTD, DATA)) == DATA
    streamed = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(streamed, closefd=False) as writer:
        writer.write(DATA)  # as a JVM does: the frame does not say how long it is
    packed = streamed.getvalue()
    assert zstandard.frame_content_size(packed) == -1
    assert decompress(Compression.ZSTD, packed, ORIGIN, length_max=len(DATA)) == DATA
    with pytest.raises(CorruptRecord, match="more than 1000 bytes"):
        decompress(Compression.ZSTD, packed, ORIGIN, length_max=1000)


@codecs
@pytest.mark.parametrize("length", [len(DATA) - 1, len(DATA) + 1, 1])
def test_claims_another_length_than_it_has(codec: Compression, length: int) -> None:
    """A byte too many, a byte too few, and a bomb."""
    packed = compress(codec, DATA)
    with pytest.raises(CorruptRecord, match=r"at byte 61 of segment"):
        decompress(codec, packed, ORIGIN, length=length, length_max=1 << 20)


@codecs
def test_exceeds_the_limit(codec: Compression) -> None:
    """Claimed or not, more than the limit is refused."""
    packed = compress(codec, DATA)
    with pytest.raises(CorruptRecord, match="allowed 1000"):
        decompress(codec, packed, ORIGIN, length=len(DATA), length_max=1000)
    with pytest.raises(CorruptRecord, match="1000"):
        decompress(codec, packed, ORIGIN, length_max=1000)


@codecs
@pytest.mark.parametrize("length", [len(DATA), None])
@pytest.mark.parametrize("damage", ["cut", "longer", "garbage", "empty"])
def test_damaged_stream(codec: Compression, length: int | None, damage: str) -> None:
    """A stream that ends early, goes on after its end, or is none."""
    packed = compress(codec, DATA)
    stream = {
        "cut": packed[: len(packed) // 2],
        "longer": packed + b"more",
        "garbage": b"\x07" * 40,
        "empty": b"",
    }[damage]
    with pytest.raises(CorruptRecord, match=r"stream|bytes uncompressed"):
        decompress(codec, stream, ORIGIN, length=length, length_max=1 << 20)


def test_zstd_frame_that_asks_for_a_huge_window() -> None:
    """A frame may not make the decoder reserve what its header asks for."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = stream.compress(DATA) + stream.flush()
    with pytest.raises(CorruptRecord, match="zstd stream"):
        decompress(Compression.ZSTD, packed, ORIGIN, length_max=1 << 20)


def test_none_copies_nothing() -> None:
    """Without compression the bytes are handed on."""
    view = memoryview(DATA)
    assert decompress(Compression.NONE, view, ORIGIN, length_max=0) is view
    assert compress(Compression.NONE, DATA) is DATA


@pytest.mark.parametrize(("codec", "name"), [(2, "snappy"), (5, "unknown"), (7, "unknown")])
def test_codec_that_nobody_has(codec: int, name: str) -> None:
    """The error says which one it was."""
    with pytest.raises(UnsupportedCompression, match=rf"compression {codec} \({name}"):
        codec_of(codec)


@pytest.mark.parametrize(
    ("codec", "package"), [(Compression.LZ4, "lz4"), (Compression.ZSTD, "zstandard")]
)
def test_package_is_not_installed(
    codec: Compression, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading and writing both say which command helps; gzip goes on working."""
    packed = compress(codec, DATA)
    for name in (package, f"{package}.frame"):
        monkeypatch.setitem(sys.modules, name, None)
    for attempt in (
        lambda: compress(codec, DATA),
        lambda: decompress(codec, packed, ORIGIN, length_max=1 << 20),
    ):
        with pytest.raises(UnsupportedCompression, match=rf"{package} .*raftmq\[compression\]"):
            attempt()
    assert zlib.decompress(compress(Compression.GZIP, DATA), wbits=31) == DATA
