"""Results of a benchmark: a table on stdout, and JSON with what one must know of the machine.

Owns the form of `benchmarks/results/NAME.json`: {"name", "machine", "rows": [{column: value}]}.
Measures nothing.
"""

from __future__ import annotations

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("trio", "msgspec", "crc32c", "zstandard", "lz4")
WIDTH = 220  # where no terminal has one: figures must not be cut
CPU_INFO = Path("/proc/cpuinfo")


class Report:
    """Collects rows; rows with the same columns stand in one table."""

    def __init__(self, name: str, path: Path | None = None) -> None:
        self.name = name
        self.path = path or RESULTS / f"{name}.json"
        self.rows: list[dict[str, Any]] = []

    def row(self, **columns: Any) -> None:
        self.rows.append(columns)

    def finish(self) -> None:
        """Show the tables and write the file."""
        console = Console()
        if not console.is_terminal:
            console = Console(width=WIDTH)
        for table in self._tables():
            console.print(table)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        document = {"name": self.name, "machine": machine(), "rows": self.rows}
        self.path.write_text(json.dumps(document, indent=2) + "\n")
        console.print(f"written to {self.path}", soft_wrap=True)

    def _tables(self) -> list[Table]:
        tables: dict[tuple[str, ...], Table] = {}
        for row in self.rows:
            columns = tuple(row)
            if columns not in tables:
                tables[columns] = self._table(columns)
            tables[columns].add_row(*map(shown, row.values()))
        return list(tables.values())

    def _table(self, columns: tuple[str, ...]) -> Table:
        table = Table(title=self.name)
        for column in columns:
            numeric = not isinstance(self.rows[0].get(column), str)
            table.add_column(column, justify="right" if numeric else "left")
        return table


def shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)


def machine() -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {package: version(package) for package in PACKAGES},
    }


def cpu_name() -> str:
    if not CPU_INFO.exists():
        return platform.processor()
    lines = CPU_INFO.read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
