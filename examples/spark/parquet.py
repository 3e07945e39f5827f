"""The results that the streaming program has written into Parquet: a folder for each microbatch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarrow import parquet

from .totals import Row

if TYPE_CHECKING:
    from pathlib import Path


def read_results(folder: Path) -> list[Row]:
    """The number of the microbatch is in the names of the folders alone."""
    table = parquet.read_table(folder, columns=list(Row._fields))
    columns = (column.to_pylist() for column in table.columns)
    return [Row(*values) for values in zip(*columns, strict=True)]
