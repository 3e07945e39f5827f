"""raftmq's source and sink of Spark beside Spark's own connector for Kafka, in one session and run.

    python -m benchmarks.spark_peers [sink source copy few empty] [--rounds 3] [--scale 1]
        [--root DIR] [--page]

Installs Spark with its connector, and Kafka, into environments of their own below `build/peers`
(minutes, the first time). Needs Java 17 and Maven. Both clusters run all the time, each idle while
the other has a turn: a restarted JVM would have to warm up in each round. `--page` writes a section
of docs/PEERS.md. It wants the machine for itself.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.log import folder
from benchmarks.peers.environment import Environment, inherited
from benchmarks.peers.head import head
from benchmarks.peers.kafka import Kafka
from benchmarks.peers.page import OTHERS_CORES_MAX, PAGE, with_spark_section
from benchmarks.peers.raftmq import Raftmq
from benchmarks.peers.servers import die_with_parent, usage_of
from benchmarks.report import RESULTS
from benchmarks.spark_peers.install import connector_jars, install
from benchmarks.spark_peers.table import COUNTED, TITLES, TUNED, markdown, tables

if TYPE_CHECKING:
    from benchmarks.peers.peer import Cluster

ROWS = 1_000_000
SECTIONS = (*TITLES, *COUNTED)
REST_SECONDS = 5.0
WIDTH = 160  # of tables in a file


def main() -> None:
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("broken off"))  # and clean up
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    console.print("being installed, unless it is there")
    spark, kafka = Environment("spark"), Kafka(Environment("kafka"))
    versions = {**install(spark), "Kafka": kafka.install()["server"]}
    found = run(spark, kafka, arguments)
    outcome = {
        "head": about(arguments, versions, found["at_rest"]),
        "warnings": warnings(found),
        "sections": found["sections"],
    }
    finish(console, outcome, is_page=arguments.page)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="section", help=", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help=f"of {ROWS:,} rows")
    parser.add_argument("--root", type=Path, default=Path())
    parser.add_argument("--page", action="store_true", help="write the section of docs/PEERS.md")
    arguments = parser.parse_args()
    if unknown := {*arguments.sections} - {*SECTIONS}:
        parser.error(f"no section {', '.join(sorted(unknown))}")
    return arguments


def run(spark: Environment, kafka: Kafka, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the load has found, and how many cores servers took before."""
    with ExitStack() as kept:
        # The same checkout, and the same Python, as in Spark's tasks.
        raftmq, root = Raftmq(spark), arguments.root.resolve()
        clusters = {
            peer.name: kept.enter_context(
                peer.open_cluster(kept.enter_context(folder(root)), is_synced=False)
            )
            for peer in (raftmq, kafka)
        }
        at_rest = {name: cores_at_rest(cluster) for name, cluster in clusters.items()}
        path = kept.enter_context(folder(root))
        job = {
            **{name: list(cluster) for name, cluster in clusters.items()},
            "jars": [str(jar) for jar in connector_jars(spark)],
            "folder": str(path),
            "outcome": str(path / "outcome.json"),
            "sections": arguments.sections or SECTIONS,
            "rounds": arguments.rounds,
            "rows": int(ROWS * arguments.scale),
        }
        subprocess.run(
            [spark.python, "-P", "-m", "benchmarks.spark_peers.load", json.dumps(job)],
            env=inherited(),
            preexec_fn=die_with_parent,
            check=True,
        )
        return {**json.loads((path / "outcome.json").read_text()), "at_rest": at_rest}


def cores_at_rest(cluster: Cluster) -> float:
    """That its servers take while nobody asks them for anything."""
    before = usage_of(cluster.process_ids).cpu_seconds
    time.sleep(REST_SECONDS)
    return (usage_of(cluster.process_ids).cpu_seconds - before) / REST_SECONDS


# -- the outcome -------------------------------------------------------------------------------


def about(
    arguments: argparse.Namespace, versions: dict[str, str], at_rest: dict[str, float]
) -> dict[str, Any]:
    given = [*arguments.sections, "--rounds", str(arguments.rounds)]
    given += ["--scale", f"{arguments.scale:g}", *(["--page"] if arguments.page else [])]
    return head(
        "benchmarks.spark_peers",
        given,
        rounds=arguments.rounds,
        rows=int(ROWS * arguments.scale),
        versions=", ".join(f"{name} {version}" for name, version in versions.items()),
        at_rest=" and ".join(f"{cores:.2f}" for cores in at_rest.values()),
        tuned=", ".join(f"`{name}={value}`" for name, value in TUNED.items()),
    )


def warnings(found: dict[str, Any]) -> list[str]:
    lines = [f"SKIPPED delivery={one}: the sink does not know it" for one in found["unknown"]]
    lines += [f"FAILED {name}: {why}" for name, why in found["failed"].items()]
    if found["others_cores"] > OTHERS_CORES_MAX:
        lines.append(
            f"NOT TO BE JUDGED: other processes took {found['others_cores']:.1f} cores. "
            "Run it on a machine that does nothing else."
        )
    return lines


def finish(console: Console, outcome: dict[str, Any], *, is_page: bool) -> None:
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "spark-peers.json"
    path.write_text(json.dumps(outcome, indent=2) + "\n")
    for title, (columns, *rows) in tables(outcome).items():
        table = Table(*columns, title=title)
        for row in rows:
            table.add_row(*row)
        console.print(table)
    console.print(f"servers at rest took {outcome['head']['at_rest']} of a core")
    console.print(outcome["head"]["versions"], soft_wrap=True)
    for line in outcome["warnings"]:
        console.print(line, style="bold red")
    console.print(f"written to {path}", soft_wrap=True)
    if is_page:
        PAGE.write_text(with_spark_section(PAGE.read_text(), markdown(outcome)))
        console.print(f"written to {PAGE}", soft_wrap=True)


if __name__ == "__main__":
    main()
