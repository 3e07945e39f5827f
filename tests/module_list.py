"""docs/MODULES.md, written from the docstrings of the modules: `python -m tests.module_list`.

A module says once what it owns, and the page repeats it; `test_tidy.py` compares the two.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/MODULES.md"
PRODUCT = ("raftmq", "spark_io")
HEAD = """# Modules

What each module owns, package by package: the first paragraph of its docstring. Written by
`python -m tests.module_list`. How the modules work together is described in
[ARCHITECTURE](ARCHITECTURE.md); [moved.md](moved.md) has the new places of modules that were moved.
"""


def page() -> str:
    return HEAD + "".join(_section(folder) for folder in _packages())


def _packages() -> list[Path]:
    return sorted(path.parent for name in PRODUCT for path in (ROOT / name).rglob("__init__.py"))


def _section(folder: Path) -> str:
    name = folder.relative_to(ROOT).as_posix()
    modules = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
    lines = [f"\n## `{name}/`\n\n{_first_line(folder / '__init__.py')}\n"]
    if modules:
        lines.append("\n| module | owns |\n|---|---|\n")
    lines += [f"| `{path.name}` | {_first_line(path)} |\n" for path in modules]
    return "".join(lines)


def _first_line(path: Path) -> str:
    """The first paragraph of the docstring, with which each module begins (`test_tidy.py`)."""
    docstring = path.read_text("utf-8").split('"""', 2)[1]
    return " ".join(docstring.partition("\n\n")[0].split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
