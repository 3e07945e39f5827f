"""Spark in an environment of its own: PySpark, its connector for Kafka by Maven, and raftmq.

Connector and Spark are of one version: the newest that has a connector.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from benchmarks.peers.environment import CHECKOUT

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.peers.environment import Environment

VERSION = "4.2.0"  # 4.3.0 was published without a connector
CONNECTOR = "spark-sql-kafka-0-10_2.13"
POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>peers</groupId><artifactId>spark</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.spark</groupId><artifactId>{CONNECTOR}</artifactId>
      <version>{VERSION}</version>
    </dependency>
  </dependencies>
</project>
"""
JAR = re.compile(r"(?P<artifact>.+?)-(?P<version>\d[^-]*)\.jar")


def install(environment: Environment) -> dict[str, str]:
    """Unless it is there; versions, by what has one.

    Raises:
        Unavailable: it cannot be had on this machine.
    """
    versions = environment.install_client((f"pyspark=={VERSION}",))
    # raftmq is this checkout's own code, which may change; what it requires is in that file.
    requirements = (CHECKOUT / "pyproject.toml").read_text()
    environment.once("raftmq", requirements, lambda: _install_raftmq(environment))
    environment.once("connector", POM, lambda: _install_connector(environment))
    version = r"print(*[__import__(name).__version__ for name in ('raftmq', 'pyarrow')])"
    raftmq, pyarrow = environment.run(environment.python, "-c", version).split()
    kafka = environment.find("lib/kafka-clients-*.jar").stem.rpartition("-")[2]
    return {
        "Spark": versions["client pyspark"],
        "raftmq": raftmq,
        "pyarrow": pyarrow,
        CONNECTOR: VERSION,
        "kafka-clients": kafka,
    }


def _install_raftmq(environment: Environment) -> None:
    environment.install_packages("--editable", f"{CHECKOUT}[all,spark]")


def _install_connector(environment: Environment) -> None:
    environment.run("java", "-version")
    (environment.folder / "pom.xml").write_text(POM)
    libraries = environment.folder / "lib"
    shutil.rmtree(libraries, ignore_errors=True)
    command = ("mvn", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime")
    environment.run(*command, f"-DoutputDirectory={libraries}")


def connector_jars(environment: Environment) -> list[Path]:
    """What the connector needs besides that which Spark itself has, maybe in another version."""
    sparks = environment.find("venv/lib/python*/site-packages/pyspark/jars").glob("*.jar")
    there = {artifact_of(jar.name) for jar in sparks}
    found = sorted((environment.folder / "lib").glob("*.jar"))
    return [jar for jar in found if artifact_of(jar.name) not in there]


def artifact_of(name: str) -> str:
    """What a file of that name holds, whatever its version."""
    found = JAR.fullmatch(name)
    return found["artifact"] if found else name
