"""The jobs on real Spark: what was interrupted is completed, and nothing comes twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

from spark_io.jobs import bulk_load, export, replay
from spark_io.jobs.bulk_load import RowShape, in_order, records_of
from tests.spark.frames import fill, records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from raftmq import ConsumerRecord, sync
    from raftmq.testing.server import Server

pytestmark = pytest.mark.spark

COUNT, PER_FILE = 1000, 150


def run_export(server: Server, topic: str, folder: Path, *more: str) -> int:
    size = str(PER_FILE)
    return export.main(
        [topic, "--folder", str(folder), "--records-per-file", size, "-b", server.bootstrap, *more]
    )


def files(folder: Path) -> set[str]:
    """Those that count: what a killed task was writing is hidden."""
    return {str(path.relative_to(folder)) for path in folder.rglob("[0-9]*") if path.is_file()}


def offsets(spark: SparkSession, folder: Path) -> Counter[tuple[int, int]]:
    rows = spark.read.parquet(str(folder)).select("partition", "offset").collect()
    return Counter((row.partition, row.offset) for row in rows)


def by_partition(found: list[ConsumerRecord]) -> dict[int, list[tuple[object, ...]]]:
    partitions = defaultdict(list)
    for each in found:
        partitions[each.partition].append(
            (each.key, each.value, each.timestamp, list(each.headers), list(each.tags))
        )
    return partitions


def fill_with_extras(client: sync.Client, topic: str) -> None:
    with client.producer() as producer:
        producer.enqueue_columns(
            topic,
            values=[b"%d" % number for number in range(COUNT)],
            headers=[[("n", b"%d" % number)] for number in range(COUNT)],
            tags=[["even"] if number % 2 == 0 else [] for number in range(COUNT)],
            timestamps=[1_000_000 + number for number in range(COUNT)],
            partitions=[number % 2 for number in range(COUNT)],
        )


def test_an_export_that_failed_is_completed(
    spark: SparkSession, server: Server, client: sync.Client, topic: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The tasks of one partition fail, as something stands where its folder should be."""
    fill(client, topic, range(COUNT))
    ends = client.admin.offsets(topic, "latest")
    obstacle = tmp_path / f"topic={topic}" / "partition=1"
    obstacle.parent.mkdir()
    obstacle.write_text("no folder")

    assert run_export(server, topic, tmp_path, "--dry-run") == 0
    assert run_export(server, topic, tmp_path) == 1
    told = capsys.readouterr().err
    assert "partition=1" in told.splitlines()[-1]
    assert "Traceback" not in told
    obstacle.unlink()

    assert run_export(server, topic, tmp_path) == 0
    full = {(p, at) for p, end in ends.items() for at in range((end or 0) // PER_FILE * PER_FILE)}
    assert offsets(spark, tmp_path) == Counter(full)
    found = files(tmp_path)
    capsys.readouterr()
    assert run_export(server, topic, tmp_path) == 0
    assert files(tmp_path) == found
    assert capsys.readouterr().out == f"{export.NOTHING}\n"

    assert run_export(server, topic, tmp_path, "--final") == 0
    everything = {(p, at) for p, end in ends.items() for at in range(end or 0)}
    assert offsets(spark, tmp_path) == Counter(everything)


def test_what_was_exported_is_replayed_once(
    spark: SparkSession, server: Server, client: sync.Client, topic: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """With partitions, order, headers, tags and times; and then what was exported since."""
    fill_with_extras(client, topic)
    copy = f"{topic}-copy"
    client.admin.create_topic(copy, partitions=3, replication_factor=3)
    job = [str(tmp_path), "--to", copy, "--id", "copy", "--generation", "1", "--keep-timestamps",
           "--tasks", "2", "-b", server.bootstrap]  # fmt: skip
    assert run_export(server, topic, tmp_path, "--final") == 0
    assert replay.main([*job, "--dry-run"]) == 0
    assert f"0   {COUNT // 2}      0   {COUNT // 2 - 1}" in capsys.readouterr().out
    assert replay.main(job) == 0
    assert replay.main(job) == 0
    assert by_partition(records(client, copy)) == by_partition(records(client, topic))

    fill_with_extras(client, topic)
    assert run_export(server, topic, tmp_path, "--final") == 0
    assert replay.main(job) == 0
    assert by_partition(records(client, copy)) == by_partition(records(client, topic))


def test_a_target_that_does_not_fit(
    spark: SparkSession, server: Server, client: sync.Client, topic: str, tmp_path: Path,
    load: Callable[..., int], capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It is missing, or has fewer partitions: said before the first row, and by a dry run."""
    fill_with_extras(client, topic)
    assert run_export(server, topic, tmp_path / "export", "--final") == 0
    narrow = f"{topic}-narrow"
    client.admin.create_topic(narrow, partitions=1, replication_factor=3)
    job = [
        str(tmp_path / "export"),
        "--id",
        "copy",
        "--generation",
        "1",
        "-b",
        server.bootstrap,
        "--to",
    ]
    for more in ([], ["--dry-run"]):
        capsys.readouterr()
        assert replay.main([*job, "nowhere", *more]) == 3
        assert load("--to", "nowhere", "--value", "id", *more) == 3
        assert capsys.readouterr().err.count("there is no topic 'nowhere'") == 2
        assert replay.main([*job, narrow, *more]) == 1
        assert "or --by-key" in capsys.readouterr().err
    assert records(client, narrow) == []
    assert replay.main([*job, narrow, "--by-key"]) == 0
    assert len(records(client, narrow)) == COUNT


def test_partitions_that_are_text(
    spark: SparkSession, server: Server, client: sync.Client, topic: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """As an export that went through CSV has them: compared as numbers before the first row, and
    the sink names the type that it wants."""
    job = ["--to", topic, "--id", "text", "--generation", "1", "-b", server.bootstrap]
    for count, told in ((12, "rows name partitions up to 11"), (3, "column partition")):
        rows = spark.range(12).selectExpr(f"string(id % {count}) partition", "string(id) value")
        rows.write.parquet(str(tmp_path / str(count)))
        assert replay.main([str(tmp_path / str(count)), *job]) != 0
        assert told in capsys.readouterr().err
    assert records(client, topic) == []


def test_retention_before_the_export(
    server: Server, client: sync.Client, spark: SparkSession, topic: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """It is an error, unless it is accepted, once; from then on the folder says so."""
    fill_with_extras(client, topic)
    client.admin.delete_records(topic, {0: 200})
    assert run_export(server, topic, tmp_path) == 1
    assert f"{topic}-0[0:200]" in capsys.readouterr().err
    assert run_export(server, topic, tmp_path, "--allow-loss") == 0
    assert run_export(server, topic, tmp_path) == 0
    expected = {(0, at) for at in range(200, 450)} | {(1, at) for at in range(450)}
    assert offsets(spark, tmp_path) == Counter(expected)


def test_a_replay_of_any_files(
    spark: SparkSession, server: Server, client: sync.Client, topic: str, tmp_path: Path
) -> None:
    """Without partitions and offsets rows come in the order of their files, by their keys."""
    rows = spark.range(100).selectExpr("cast(id % 5 as string) key", "cast(id as string) value")
    rows.coalesce(1).write.parquet(str(tmp_path / "plain"))
    job = [str(tmp_path / "plain"), "--to", topic, "--id", "plain", "--tasks", "2",
           "-b", server.bootstrap]  # fmt: skip
    for generation in ("1", "1", "2"):
        assert replay.main([*job, "--generation", generation]) == 0
    found = defaultdict(list)
    for each in records(client, topic):
        found[each.key].append(int(each.value or b""))
    assert dict(found) == {b"%d" % key: [*range(key, 100, 5)] * 2 for key in range(5)}
    assert replay.main([*job, "--generation", "3", "--keep-partitions"]) == 1


@pytest.mark.parametrize(
    "shape",
    [
        RowShape(key="id % 7", value="'same'", order_by=["id % 2", "-id"]),
        RowShape(value="id", order_by=["-id"]),
    ],
)
def test_records_do_not_depend_on_how_rows_were_cut(spark: SparkSession, shape: RowShape) -> None:
    """The same records in the same tasks and order, however many tasks have read them."""

    def sent(cuts: int) -> list[list[tuple[object, ...]]]:
        frame = spark.range(200).repartition(cuts)
        return in_order(records_of(frame, shape), tasks=3).rdd.glom().collect()

    found = sent(4)
    assert found == sent(1)
    assert sum(map(len, found)) == 200


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    """Cut into many files, which Spark may pack into tasks as it likes."""
    folder = tmp_path / "csv"
    folder.mkdir()
    for number in range(10):
        lines = [f"{at},{at % 7},text {at % 3}" for at in range(number * 100, number * 100 + 100)]
        (folder / f"{number}.csv").write_text("\n".join(["id,customer,note", *lines]) + "\n")
    return folder


@pytest.fixture
def load(csv: Path, server: Server, topic: str) -> Callable[..., int]:
    job = [str(csv), "--format", "csv", "--option", "header=true", "--to", topic, "--id", "csv",
           "--generation", "1", "-b", server.bootstrap, "--tasks", "3"]  # fmt: skip
    return lambda *more: bulk_load.main([*job, *more])


def test_a_bulk_load_that_runs_twice(
    spark: SparkSession, client: sync.Client, topic: str, load: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Adds its rows once, though Spark cuts the files otherwise the second time."""
    shape = ("--key", "customer", "--value-json", "*")
    assert load(*shape, "--dry-run") == 0
    assert f"{COUNT} records" in capsys.readouterr().out
    assert load(*shape) == 0
    spark.conf.set("spark.sql.files.maxPartitionBytes", "3000")
    try:
        assert load(*shape) == 0
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    found = records(client, topic)
    assert len(found) == len({each.value for each in found}) == COUNT
    assert capsys.readouterr().out.count(f"{COUNT} rows of 'csv', generation 1") == 2


def test_a_bulk_load_in_order(
    spark: SparkSession, client: sync.Client, topic: str, load: Callable[..., int]
) -> None:
    """Records of a key come as they were asked for."""
    assert load("--key", "customer", "--value", "id", "--order-by", "cast(id as int)") == 0
    ids = defaultdict(list)
    for each in records(client, topic):
        ids[each.key].append(int(each.value or b""))
    assert len(ids) == 7
    assert all(numbers == sorted(numbers) for numbers in ids.values())


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--value", "nonesuch"], 2, "`nonesuch` cannot be resolved"),
        (["--value", "id("], 2, "Syntax error at or near"),
        ([], 1, "there is no column value among id, customer, note"),
        (["--value", "id", "--to", "nonesuch"], 3, "nonesuch"),
    ],
)
def test_mistakes_are_told_in_one_line(
    spark: SparkSession, load: Callable[..., int], capfd: pytest.CaptureFixture[str],
    arguments: list[str], code: int, told: str,
) -> None:  # fmt: skip
    """The cause, and not what Spark has wrapped around it."""
    assert load(*arguments) == code
    (line,) = [each for each in capfd.readouterr().err.splitlines() if each.startswith("bulk_load")]
    assert told in line
    assert "SQLSTATE" not in line
    assert "Traceback" not in line
