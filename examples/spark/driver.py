"""The streaming program: departure delays of each carrier and hour, from one topic into another one
and into Parquet.

A program of its own: `python driver.py BOOTSTRAP FLIGHTS RESULTS FOLDER RECORDS`. Ends when it has
read all that the topic FLIGHTS held at its start; killed and started again, it goes on where its
checkpoint in FOLDER says. RECORDS is how many a microbatch has at most, roughly. Prints on stdout
what it has done: "written 3 512" (512 rows of microbatch 3 stand in the topic), "done 3 512" (in
Parquet, too). Ends when its stdin does, so that it does not outlive its parent.

Invariant: the rows of one microbatch are one version of a shared transaction, under the same name
and number whenever it is run again. So none is read before the commit, and each counts once, though
the shuffle gives tasks other rows, in another order, each time.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TASKS = 2
JOB = "delays"  # names what is written, over all runs of this program
FLIGHT = (  # the columns of a line
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,"
    " sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING,"
    " origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT,"
    " time_hour TIMESTAMP"
)
# Flights stand in the order of their time, but only within a partition. A microbatch takes the same
# share of every partition, so they are apart in time by no more than what the aircraft of one flew
# earlier in the year than those of another: about four days. Later than a week nothing comes.
LATENESS = "7 days"


class Places(NamedTuple):
    """Attributes:
    flights, results: topics.
    folder: for the checkpoint, the Parquet files, and what Spark needs meanwhile.
    """

    bootstrap: str
    flights: str
    results: str
    folder: Path


def main(bootstrap: str, flights: str, results: str, folder: str, records_max: str) -> None:
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    places = Places(bootstrap, flights, results, Path(folder))
    with open_session(places.folder) as spark:
        delays = add_up(read(spark, places, records_max))
        query = (
            delays.writeStream.foreachBatch(partial(write, places))
            .option("checkpointLocation", str(places.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()


def open_session(folder: Path) -> SparkSession:
    """Small, quick to start, and with all of its files in `folder`."""
    java = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Djava.io.tmpdir={folder}"
    settings: dict[str, bool | float | int | str | None] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": java,
        "spark.local.dir": str(folder / "local"),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(TASKS),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.appName("delays").master(f"local[{TASKS}]")
    return builder.config(map=settings).getOrCreate()


def read(spark: SparkSession, places: Places, records_max: str) -> DataFrame:
    """The flights that have left, a row each."""
    records = (
        spark.readStream.format("raftmq")
        .option("bootstrap", places.bootstrap)
        .option("subscribe", places.flights)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", records_max)
        .load()
    )
    line = F.from_csv(F.col("value").cast("string"), FLIGHT, {"nullValue": "NA"})
    return records.select(line.alias("flight")).select("flight.*").where("dep_delay is not null")


def add_up(flights: DataFrame) -> DataFrame:
    """A row for each carrier and hour, once no flight of that hour can come any more."""
    hour = F.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'")
    return (
        flights.withWatermark("time_hour", LATENESS)
        .groupBy(F.window("time_hour", "1 hour"), "carrier")
        .agg(
            F.count("*").alias("flights"),
            F.sum("dep_delay").alias("minutes"),
            F.avg("dep_delay").alias("mean_minutes"),
        )
        .select(hour.alias("hour"), "carrier", "flights", "minutes", "mean_minutes")
    )


def write(places: Places, rows: DataFrame, batch: int) -> None:
    """One microbatch, into both places."""
    kept = rows.persist()  # else it would be added up for each of them
    line = F.to_json(F.struct("*", F.lit(batch).alias("batch")))
    (
        kept.select(F.col("carrier").alias("key"), line.alias("value"))
        .write.format("raftmq")
        .option("bootstrap", places.bootstrap)
        .option("topic", places.results)
        .option("delivery", "exactly_once")
        .option("transactionalId", JOB)
        .option("generation", str(batch))
        .mode("append")
        .save()
    )
    count = kept.count()
    _tell(f"written {batch} {count}")
    folder = places.folder / "parquet" / f"batch={batch}"
    kept.coalesce(1).write.mode("overwrite").parquet(str(folder))
    _tell(f"done {batch} {count}")
    kept.unpersist()


def _tell(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def _end_with_stdin() -> None:
    """At once; the JVM, whose stdin is held by this process, follows."""
    while os.read(0, 4096):  # not by sys.stdin, whose lock would be held when the program ends
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
