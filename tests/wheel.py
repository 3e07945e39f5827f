"""What users install, tried as they would: `python -m tests.wheel FOLDER`, a share of `make test`.

Builds the source distribution and the wheel out of that, looks into both, and installs the wheel
with each extra into an empty environment of its own, where a small program uses it. The programs
talk to a broker that runs in the environment of `[broker]`. Not `[spark]`, which is large.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import time
import venv
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PACKAGES = ("raftmq", "spark_io", "pyspark_raftmq")
SECONDS_MAX = 120  # for a program or a command, on a machine that does other things as well
# Links of Markdown that lead nowhere from an index page.
RELATIVE_LINK = re.compile(r"\]\((?!https?://|#)[^)]*\)")
MISSING = """
import sys
try:
    import raftmq.{module} as module
    module.broker
except ImportError as error:
    assert str(error).endswith("pip install 'raftmq[{extra}]'"), error
else:
    sys.exit("raftmq.{module} was not missed")
"""
# By extra: what it is for, and what it does not bring.
PROGRAMS = {
    "": """
import asyncio, sys, raftmq

async def main():
    async with raftmq.connect(sys.argv[1]) as mq:
        await mq.admin.create_topic("light", partitions=1)
        async with mq.producer() as producer:
            assert (await producer.send("light", b"one")).offset == 0
        async with mq.consumer("light", start="earliest") as consumer:
            async for record in consumer:
                assert record.value == b"one"
                break

asyncio.run(main())
"""
    + MISSING.format(module="sync", extra="sync")
    + MISSING.format(module="testing", extra="testing"),
    "sync": """
import sys
from raftmq.sync import connect

with connect(sys.argv[1]) as mq:
    mq.admin.create_topic("blocking", partitions=1)
    with mq.producer() as producer:
        assert producer.send("blocking", b"one").offset == 0
    with mq.consumer("blocking", start="earliest") as consumer:
        assert next(iter(consumer)).value == b"one"
""" + MISSING.format(module="testing", extra="testing"),
    "sync,compression": """
import sys
from raftmq.sync import connect

with connect(sys.argv[1]) as mq:
    mq.admin.create_topic("small", partitions=1)
    for codec in ("zstd", "lz4", "gzip"):
        with mq.producer(compression=codec) as producer:
            producer.send("small", b"one" * 1000)
    with mq.consumer("small", start="earliest") as consumer:
        values = [record.value for _, record in zip(range(3), consumer)]
    assert values == [b"one" * 1000] * 3
""",
    "testing": """
from raftmq.sync import connect
from raftmq.testing import broker

with broker() as server, connect(server.bootstrap) as mq:
    mq.admin.create_topic("inside", partitions=1)
""",
}  # fmt: skip


def run(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    if check and done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done


def build(folder: Path) -> tuple[Path, Path]:
    """The source distribution and, made of its content alone, the wheel."""
    backend = "from hatchling.build import build_sdist as build; print(build({!r}))"
    tools = folder / "tools"
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    needed = re.search(r"^requires = \[(.*)\]", settings, re.MULTILINE)
    assert needed is not None, "what the build requires is not on one line"
    install(tools, *re.findall(r'"([^"]+)"', needed[1]))
    run(tools / "bin/python", "-c", backend.format(str(folder)), cwd=ROOT)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    backend = backend.replace("build_sdist", "build_wheel")
    run(tools / "bin/python", "-c", backend.format(str(folder)), cwd=source)
    (wheel,) = folder.glob("*.whl")
    return sdist, wheel


def install(environment: Path, *requirements: str) -> None:
    venv.create(
        environment, symlinks=True
    )  # without pip: this one's installs into it, which is quick
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin/python"]
    quiet = ["install", "--quiet", "--disable-pip-version-check"]
    run(*pip, *quiet, *requirements, cwd=environment)


def look_into(sdist: Path, wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        text = archive.read(metadata).decode()
    information = Path(metadata).parent.as_posix()
    assert {name.split("/")[0] for name in names} == {*PACKAGES, information}, names
    assert {f"{package}/py.typed" for package in PACKAGES} <= {*names}
    assert f"{information}/licenses/LICENSE" in names
    assert not RELATIVE_LINK.findall(text), RELATIVE_LINK.findall(text)
    with tarfile.open(sdist) as archive:
        folders = {name.split("/")[1] for name in archive.getnames()}
    expected = {*PACKAGES, "deploy", "LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"}
    assert folders == {*expected, "PKG-INFO", ".gitignore"}, folders


@contextmanager
def a_broker(folder: Path, command: Path) -> Iterator[str]:
    """One process on a free port; its address."""
    dev = (command, "dev", "--dir", folder / "data")
    run(*dev, "--brokers", "1", "--port", "0", "--detach", cwd=folder)
    try:
        status = run(command, "dev", "status", "--dir", folder / "data", "-o", "json", cwd=folder)
        yield json.loads(status.stdout.splitlines()[-1])["bootstrap"]
    finally:
        run(command, "dev", "stop", "--dir", folder / "data", cwd=folder)


def try_commands(folder: Path, wheel: Path, bootstrap: str) -> None:
    """`[cli]` reaches a cluster elsewhere; what it does not bring is told in a sentence."""
    install(folder / "cli", f"{wheel}[cli]")
    command = folder / "cli/bin/raftmq"
    run(command, "-b", bootstrap, "topic", "create", "lines", cwd=folder)
    assert "lines" in run(command, "-b", bootstrap, "topic", "list", cwd=folder).stdout
    for path, arguments, extra in (
        (command, ["dev"], "broker"),
        (command, ["broker", "--config", "none"], "broker"),
        (folder / "client/bin/raftmq", ["--version"], "cli"),
    ):
        done = run(path, *arguments, cwd=folder, check=False)
        assert done.returncode == 1, done
        assert re.fullmatch(rf"raftmq: .*: pip install 'raftmq\[{extra}\]'\n", done.stderr), done


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder = folder.resolve()
    began = time.monotonic()
    sdist, wheel = build(folder)
    look_into(sdist, wheel)
    install(folder / "broker", f"{wheel}[broker,compression]")
    with a_broker(folder, folder / "broker/bin/raftmq") as bootstrap:
        for extras, program in PROGRAMS.items():
            environment = folder / (extras.replace(",", "-") or "client")
            install(environment, f"{wheel}[{extras}]" if extras else str(wheel))
            run(environment / "bin/python", "-c", program, bootstrap, cwd=folder)
            print(f"raftmq[{extras}]: {time.monotonic() - began:.0f} s")  # noqa: T201
        try_commands(folder, wheel, bootstrap)
    print(f"{wheel.name}: 6 environments in {time.monotonic() - began:.0f} s")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
