"""Figures and loads of a bench."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from raftmq.cli.benching.figures import quantiles_of, rates_of, tell
from raftmq.cli.benching.load import Amount, Load


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, (1.0, 1.0, 1.0, 1.0)),
        (2, (1.0, 2.0, 2.0, 2.0)),
        (100, (50.0, 99.0, 100.0, 100.0)),
        (1000, (500.0, 990.0, 999.0, 1000.0)),
    ],
)
def test_quantiles(count: int, expected: tuple[float, ...]) -> None:
    """Of 1 ms, 2 ms, and so on: the smallest that is large enough."""
    seconds = [number / 1000 for number in range(count, 0, -1)]
    assert tuple(quantiles_of(seconds).values()) == expected


def test_nothing_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """There is no figure then; the form stays the same."""
    rates = rates_of(records=0, byte_count=0, seconds=0.0, cpu_seconds=0.0)
    assert rates["client_cpu_us_per_record"] is None
    figures = {"bench": "produce", **rates, "latency_ms": quantiles_of([])}
    tell(figures, as_json=True)
    assert json.loads(capsys.readouterr().out)["latency_ms"]["p99_9"] is None
    tell(figures, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["figure", "value"]
    assert lines[-1].split() == ["latency_ms.max", "-"]


def test_rates() -> None:
    """Per second, and per record."""
    rates = rates_of(records=1000, byte_count=3_000_000, seconds=2.0, cpu_seconds=0.002)
    assert (rates["records_per_second"], rates["mb_per_second"]) == (500, 1.5)
    assert rates["client_cpu_us_per_record"] == 2.0


@pytest.mark.parametrize(("size", "keys"), [(0, 0), (10, 0), (100, 3), (1 << 20, 1)])
def test_a_load(size: int, keys: int) -> None:
    """As many records as were asked for, all of one size, with so many keys."""
    load = Load(size, keys)
    rows = list(load.rows(Amount(50, 1.0)))
    assert [len(value or b"") for _, value in rows] == [size] * 50
    assert len({key for key, _ in load.pool}) <= max(keys, 1)
    assert all((key is None) == (keys == 0) for key, _ in rows)
    assert load.record_bytes == pytest.approx(size + (len(b"key-0") if keys else 0))


def test_a_load_of_some_seconds() -> None:
    """It goes on until they are over."""
    load = Load(10, 0)
    assert len(list(islice(load.rows(Amount(None, 1000.0)), 10_000))) == 10_000
    assert list(load.rows(Amount(None, -1.0))) == []
