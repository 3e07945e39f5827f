"""The file that one task of an export writes."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402

from spark_io.jobs import export_task  # noqa: E402
from spark_io.jobs.export_folder import PartitionFolder  # noqa: E402
from spark_io.options.source import source_options  # noqa: E402
from spark_io.ranges import OffsetRange  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = source_options({"bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}, is_stream=False)


def batch(*offsets: int) -> Any:
    rows = [
        {
            "key": None, "value": b"v", "topic": "t", "partition": 0, "offset": offset,
            "timestamp": offset, "timestampType": 0, "headers": [{"key": "h", "value": b"1"}],
            "tags": ["x"],
        }
        for offset in offsets
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, export_task.SCHEMA)


def test_batches_become_one_file() -> None:
    """With every column; small batches share a row group."""
    file = BytesIO()
    assert export_task.write_parquet(file, iter([batch(1, 2), batch(3)])) == 3
    found = pq.ParquetFile(BytesIO(file.getvalue()))
    assert found.num_row_groups == 1
    assert found.read().to_pylist() == batch(1, 2, 3).to_pylist()


def test_large_batches_are_groups_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory is bounded."""
    monkeypatch.setattr(export_task, "GROUP_BYTES", 1)
    file = BytesIO()
    assert export_task.write_parquet(file, iter([batch(1, 2), batch(3)])) == 3
    assert pq.ParquetFile(BytesIO(file.getvalue())).num_row_groups == 2


def test_a_range_without_records() -> None:
    """Is a file all the same: its name says that nothing is missing."""
    file = BytesIO()
    assert export_task.write_parquet(file, iter([])) == 0
    assert pq.read_table(BytesIO(file.getvalue())).num_rows == 0


def test_a_task_that_runs_again(tmp_path: Path) -> None:
    """Finds its file, and asks no broker."""
    asked = OffsetRange("t", 0, 0, 10)
    with PartitionFolder(tmp_path, "t", 0).new_file(asked) as file:
        export_task.write_parquet(file, iter([batch(1, 2)]))
    assert export_task.export_range(str(tmp_path), OPTIONS, asked) == export_task.Exported(asked, 2)
