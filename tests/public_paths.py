"""What programs may import or start: tests/unit/public_paths.txt, and how its lines are found.

    python -m tests.public_paths --add     adds what `__all__`, documents and examples name by now

A line is removed by hand only, as that breaks programs. Without `--add` the command prints how many
of the lines this version of the code has; for another checkout:
`PYTHONPATH=DIR python -P tests/public_paths.py`.

A line is `module:name`, `-m module` for what is started, or `fixture name` of the pytest plugin.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests/unit/public_paths.txt"
PLUGIN = "raftmq.testing.pytest_plugin"
WITH_ALL = (
    "raftmq",
    "raftmq.client",
    "raftmq.errors",
    "raftmq.sync",
    "raftmq.testing",
    "pyspark_raftmq",
)
JOBS = "spark_io.jobs"
FROM = re.compile(
    r"^ *from ((?:raftmq|spark_io|pyspark_raftmq)[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE
)
STARTED = re.compile(r"-m ((?:raftmq|spark_io)(?:\.\w+)*)")
FIXTURE = re.compile(r"^@pytest\.fixture.*\ndef (\w+)", re.MULTILINE)


def listed() -> list[str]:
    lines = LIST.read_text("utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def touch(path: str) -> None:
    """
    Raises:
        ImportError: there is no such module.
        AttributeError: the module has no such name.
    """
    kind, _, name = path.rpartition(" ")
    if kind == "-m":
        _find_program(name)
    elif kind == "fixture":
        getattr(import_module(PLUGIN), name)
    else:
        module, _, name = path.partition(":")
        getattr(__import__(module, fromlist=[name]), name)  # as `from module import name` does it


def _find_program(name: str) -> None:
    """Without running it: a package's `__main__`, or a file that ends by what starts it."""
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations:
        spec = find_spec(f"{name}.__main__")
    if spec is None or spec.origin is None:
        raise ImportError(f"no module {name}")
    if '__name__ == "__main__"' not in Path(spec.origin).read_text("utf-8"):
        raise ImportError(f"{name} is nothing that can be started")


def is_there(path: str) -> bool:
    try:
        touch(path)
    except (ImportError, AttributeError):
        return False
    return True


def find() -> Iterator[str]:
    """What `__all__` names, and what documents and examples import."""
    for module in WITH_ALL:
        names = getattr(import_module(module), "__all__", ())
        yield from (f"{module}:{name}" for name in names)
    for name in FIXTURE.findall(Path(str(import_module(PLUGIN).__file__)).read_text("utf-8")):
        yield f"fixture {name}"
    for folder, pattern in ((".", "*.md"), ("docs", "*.md"), ("examples", "**/*.py")):
        for file in sorted((ROOT / folder).glob(pattern)):
            if not file.name.endswith("_demo.py"):  # demos show the inside: no program is like them
                yield from _named_in(file.read_text("utf-8"))
    for file in sorted(ROOT.joinpath(*JOBS.split(".")).glob("*.py")):
        if '__name__ == "__main__"' in file.read_text("utf-8"):
            yield from (f"-m {JOBS}.{file.stem}", f"{JOBS}.{file.stem}:main")
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    yield from scripts.values()


def _named_in(text: str) -> Iterator[str]:
    for module, names in FROM.findall(text):
        plain = re.sub(r"#.*|[()]", "", names)
        yield from (f"{module}:{one.split()[0]}" for one in plain.split(",") if one.strip())
    yield from (f"-m {name}" for name in STARTED.findall(text))


def add() -> None:
    head = [line for line in LIST.read_text("utf-8").splitlines() if line.startswith("#")]
    LIST.write_text("\n".join([*head, *sorted({*listed(), *find()})]) + "\n", "utf-8")


if __name__ == "__main__":
    if "--add" in sys.argv[1:]:
        add()
    paths = listed()
    print(f"{sum(map(is_there, paths))} of {len(paths)}")  # noqa: T201
