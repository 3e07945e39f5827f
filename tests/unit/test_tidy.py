"""The house rules of docs/STYLE.md that no linter knows: sizes, words, and documents that are true.

Each test lists every offender, as file:line where it can, and fails with the whole list. Reads
the checkout only; imports nothing of raftmq.
"""

from __future__ import annotations

import ast
import os
import re
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

import pytest

from tests import module_list

pytestmark = pytest.mark.gate  # whichever is first parses the whole product

ROOT = Path(__file__).parents[2]
PRODUCT = ("raftmq", "spark_io")
CODE = (*PRODUCT, "jepsen-like", "tests", "benchmarks", "examples")
SKIPPED = {"build", "dist", "demo-data", "raftmq-data", "results", "jepsen-results", "__pycache__"}
TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".service"}
TEXT_NAMES = {"Makefile", "run", "Containerfile", "Dockerfile"}

FUNCTION_LINES_MAX = 70
FUNCTION_LINES_MEDIAN_MAX = 12
FUNCTION_LINES_P90_MAX = 30
FILE_LINES_MAX = 900
FILE_LINES_QUESTIONED = 600
# Files over 600 lines, each with the reason why it is better in one piece.
LONG_FILES: dict[str, str] = {
    "raftmq/partition/scheduling/schedule.py": "one state machine: each rule beside what undoes it",
    "raftmq/partition/replica.py": "one replica in every role: what ends one begins the other",
    "raftmq/partition/storage/directory.py": "how logs come, change and go, under one lock each",
    "raftmq/partition/storage/segment.py": "bytes and both indexes: cut, walked and doubted as one",
    "raftmq/partition/storage/log.py": "the one owner of a log's state, and what reads it",
    "raftmq/broker/groups/coordinator.py": "slots taken over, kept and released, by one rule each",
    "raftmq/metadata/commands.py": "the format of the log: all tags, whose numbers are one list",
    "raftmq/sync/admin.py": "written by a program: each call of the asynchronous one",
    "raftmq/errors.py": "one tree, which handlers and checkers read as a whole",
}

# Written so that no pattern matches itself.
LEFT_OVER = re.compile(r"\bFIX[M]E\b|\bX{3}\b")
WORKPLACE = re.compile(
    r"/wor[k]/|\.librar[y]\b|shared/[A-Z]+\.m[d]|\bissue #?[0-9]+", re.IGNORECASE
)
DOCSTRING = re.compile(r'(?:#.*\n)*r?"""[^"]')
CITED = re.compile(r"decisions?[/ ](\d{4})\b", re.IGNORECASE)
CODE_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
ASSIGNED = re.compile(r"^ *([a-z_]+)\.(\w+) = ", re.MULTILINE)
MAKE_LINE = re.compile(r"^\$? ?(?:[A-Z_]+=\S+ )*make(?: +[A-Z_]+=\S*)* +([a-z-]+)", re.MULTILINE)
MAKE_INLINE = re.compile(r"`make(?: +[A-Z_]+=\S*)* +([a-z-]+)")
MAKE_TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)
# Real processes and real kernels are waited for in real time; nothing else is.
SLEEPERS = ("tests/powercut/", "tests/cluster/", "tests/spark/", "tests/jepsen_like/")
# Simulations are worlds on virtual time: a part of one does not name the clock that it runs on.
SIMULATIONS = "tests/simulation/"
VIRTUAL_CLOCKS = ("autojump_clock", "MockClock", "tests.simulation.deterministic", "run_inline")

CALLED = {"print", "sleep"}

AnyFunction = ast.FunctionDef | ast.AsyncFunctionDef


class Function(NamedTuple):
    """A function with the place where it begins; lines count from `def` to its last line."""

    place: str
    name: str
    lines: int


class Call(NamedTuple):
    """Of one of CALLED, as it is written: `trio.sleep`."""

    name: str
    lineno: int


class Syntax(NamedTuple):
    """What the tests want to know of a file, stubs of protocols left out."""

    functions: list[Function]
    calls: list[Call]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def text_of(path: Path) -> str:
    return path.read_text("utf-8")


@cache
def syntax_of(path: Path) -> Syntax:
    """Of a tree that lives on, every full collection of garbage would walk each node."""
    functions, calls = [], []
    for node in ast.walk(ast.parse(text_of(path), name_of(path))):
        if isinstance(node, AnyFunction) and not is_stub(node):
            functions.append(Function(f"{name_of(path)}:{node.lineno}", node.name, lines_of(node)))
        elif isinstance(node, ast.Call) and last_name(node.func) in CALLED:
            calls.append(Call(ast.unparse(node.func), node.lineno))
    return Syntax(functions, calls)


def last_name(called: ast.expr) -> str:
    """`sleep` of `trio.sleep`."""
    if isinstance(called, ast.Attribute):
        return called.attr
    return called.id if isinstance(called, ast.Name) else ""


def modules(*folders: str) -> list[Path]:
    return sorted(path for path in text_files() if path.suffix == ".py" and is_in(path, folders))


def is_in(path: Path, folders: tuple[str, ...]) -> bool:
    return path.relative_to(ROOT).parts[0] in folders


@cache
def text_files() -> tuple[Path, ...]:
    """Every file that people write, wherever it lies in the checkout."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if is_ours(name)]
        found += [Path(folder, name) for name in names if is_text(name)]
    return tuple(sorted(found))


def is_ours(folder: str) -> bool:
    return folder == ".ci" or not (folder.startswith(".") or folder in SKIPPED)


def is_text(name: str) -> bool:
    return name in TEXT_NAMES or Path(name).suffix in TEXT_SUFFIXES


def matches(pattern: re.Pattern[str], paths: tuple[Path, ...] | list[Path]) -> list[str]:
    """`file:line: match` for every place where `pattern` is found."""
    return [
        f"{name_of(path)}:{text_of(path).count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for path in paths
        for match in pattern.finditer(text_of(path))
    ]


def functions(*folders: str) -> list[Function]:
    return [found for path in modules(*folders) for found in syntax_of(path).functions]


def lines_of(node: AnyFunction) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def is_stub(node: AnyFunction) -> bool:
    """A method of a protocol: it would make the median look better than it is."""
    return all(
        isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) for part in node.body
    )


def no_offenders(offenders: list[str], rule: str) -> None:
    assert not offenders, f"{rule}:\n  " + "\n  ".join(offenders)


def test_no_function_is_longer_than_a_screen() -> None:
    """A function is read at one go; above 70 lines it is two. Elsewhere ruff counts statements."""
    long = [
        f"{found.place} {found.name}: {found.lines}"
        for found in functions(*PRODUCT)
        if found.lines > FUNCTION_LINES_MAX
    ]
    no_offenders(long, f"longer than {FUNCTION_LINES_MAX} lines")


def test_most_functions_are_small() -> None:
    """The limit is no target: half of the functions have at most 12 lines, nine of ten 30."""
    lengths = [found.lines for found in functions(*PRODUCT)]
    assert median(lengths) <= FUNCTION_LINES_MEDIAN_MAX
    assert quantiles(lengths, n=10)[-1] <= FUNCTION_LINES_P90_MAX


def test_no_file_is_a_knot() -> None:
    """Above 600 lines a file needs a reason in LONG_FILES, above 900 it is split."""
    sizes = {name_of(path): text_of(path).count("\n") for path in modules(*CODE)}
    long = [
        f"{name}: {lines}"
        for name, lines in sizes.items()
        if lines > (FILE_LINES_MAX if LONG_FILES.get(name) else FILE_LINES_QUESTIONED)
    ]
    no_offenders(long, f"over {FILE_LINES_QUESTIONED} lines: split, or say why in LONG_FILES")
    no_offenders([name for name in LONG_FILES if name not in sizes], "LONG_FILES that are gone")


def test_every_module_says_what_it_owns() -> None:
    """Newcomers read the first lines of a file; there must be some."""
    silent = [name_of(path) for path in modules(*CODE) if not DOCSTRING.match(text_of(path))]
    no_offenders(silent, "modules without a docstring")


def test_the_library_never_prints() -> None:
    """What a library has to say goes to the caller or to a logger."""
    prints = [
        f"{name_of(path)}:{call.lineno}"
        for path in modules(*PRODUCT)
        for call in syntax_of(path).calls
        if call.name == "print"
    ]
    no_offenders(prints, "print() in a library")


def test_nothing_is_left_for_later_in_a_comment() -> None:
    """What is to be done stands in the tracker, where somebody looks."""
    no_offenders(matches(LEFT_OVER, text_files()), "left over")


def test_the_repository_speaks_of_the_software_alone() -> None:
    """A reader has this repository and nothing of the desk on which it was written."""
    no_offenders(matches(WORKPLACE, text_files()), "names a place that no reader has")


def test_every_cited_decision_exists() -> None:
    """A number in a comment leads to a record."""
    known = {path.name[:4] for path in decision_records()}
    cited = [place for place in matches(CITED, text_files()) if place[-4:] not in known]
    no_offenders(cited, "cites a decision that does not exist")


def test_every_decision_is_listed() -> None:
    """docs/decisions/README.md links each record once, and no record has the number of another."""
    records = [path.name for path in decision_records()]
    index = text_of(ROOT / "docs/decisions/README.md")
    no_offenders([name for name in records if index.count(f"]({name})") != 1], "not listed once")
    assert len({name[:4] for name in records}) == len(records)


def decision_records() -> list[Path]:
    return sorted((ROOT / "docs/decisions").glob("[0-9][0-9][0-9][0-9]-*.md"))


def test_the_list_of_modules_is_what_they_say() -> None:
    """docs/MODULES.md has each module of the product, and the first paragraph of its docstring."""
    assert module_list.PAGE.read_text("utf-8") == module_list.page(), (
        "docs/MODULES.md is not what the modules say: python -m tests.module_list"
    )


def test_what_tests_replace_in_a_module_is_there() -> None:
    """`module.NAME = fake` is silent where the module has lost the name: nothing is replaced."""
    homes = {module_of(path): path for path in modules(*PRODUCT)}
    wrong = [
        f"{name_of(path)}: {name_of(home)} has no {name}"
        for path in modules("tests", "jepsen-like", "benchmarks")
        for alias, name in ASSIGNED.findall(text_of(path))
        if (home := homes.get(imported_as(alias, text_of(path)))) is not None
        and not re.search(rf"\b{name}\b", text_of(home))
    ]
    no_offenders(wrong, "names of modules that are gone")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_as(alias: str, text: str) -> str:
    """The module of that name in `text`, if `from package import module` brought it there."""
    found = re.search(rf"(?m)^ *from ([\w.]+) import (?:(\w+) as )?{alias}$", text)
    return f"{found[1]}.{found[2] or alias}" if found else ""


def test_every_make_command_in_the_documents_exists() -> None:
    """Whatever README and docs tell people to type is a target of the Makefile."""
    targets = set(MAKE_TARGET.findall(text_of(ROOT / "Makefile")))
    wrong = [
        f"{name_of(path)}: make {target}"
        for path in documents()
        for target in made_in(text_of(path))
        if target not in targets
    ]
    no_offenders(wrong, "no such target")


def test_the_makefile_uses_no_variable_that_is_gone() -> None:
    """make takes it for empty, and `make sim SEED=7` would replay another world."""
    text = text_of(ROOT / "Makefile")
    used = set(re.findall(r"\$\(([A-Z_]+)\)", text))
    known = set(re.findall(r"(?m)^(?:[$()A-Z_ ]+: )?([A-Z_]+) *[:?]?=", text))
    given = {"ARGS", "CURDIR", "MAKE", "SEED", "SEEDS"}  # by make, and by who types the command
    no_offenders(sorted(used - known - given), "used in the Makefile, and nowhere set")


def test_every_folder_of_tests_is_in_a_share() -> None:
    """What no share of `make test` names would be run by nobody."""
    shares = re.findall(r"pytest \$\(WHOLE\) (?:\$\(PARALLEL\) )?(.*)", text_of(ROOT / "Makefile"))
    named = sorted(" ".join(shares).split())
    folders = {path.relative_to(ROOT).parts[1] for path in modules("tests")}
    existing = sorted(f"tests/{folder}" for folder in folders if not folder.endswith(".py"))
    assert named == existing


def documents() -> list[Path]:
    return [path for path in text_files() if path.suffix == ".md"]


def made_in(text: str) -> list[str]:
    blocks = "\n".join(CODE_BLOCK.findall(text))
    return MAKE_LINE.findall(blocks) + MAKE_INLINE.findall(text)


def test_no_test_waits_for_the_clock_on_the_wall() -> None:
    """Sleeping makes tests slow and guesses; they wait for events, or on a clock that jumps."""
    sleeps = [
        f"{name_of(path)}:{call.lineno}"
        for path in modules("tests")
        if "sleep(" in text_of(path) and not name_of(path).startswith(SLEEPERS)
        for call in syntax_of(path).calls
        if is_real_sleep(call.name, path)
    ]
    no_offenders(sleeps, "sleeps for real")


def is_real_sleep(called: str, path: Path) -> bool:
    if called == "trio.sleep":
        is_named = any(clock in text_of(path) for clock in VIRTUAL_CLOCKS)
        return not is_named and not name_of(path).startswith(SIMULATIONS)
    return called in {"time.sleep", "sleep", "asyncio.sleep"}
