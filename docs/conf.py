"""How the pages under docs/ become the site that `make docs` writes to build/docs: Sphinx and MyST.

Owns what is rendered and how links leave the site. Pages are written for readers of the repository
first: their links to files outside of docs/ lead to the repository from here.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from raftmq.version import __version__

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).parent
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf-8"))["project"]
REPOSITORY = PROJECT["urls"]["Source"]
ERRORS_PAGE = "reference/errors"
FOLDER_LINK = re.compile(r"\]\(\.\./([\w-]+(?:/[\w-]+)*)/?\)")

sys.path.insert(0, str(HERE))  # reference_program: the commands, loaded

project = "raftmq"
author = "raftmq contributors"
copyright = "raftmq contributors"  # noqa: A001  # Sphinx's name
version = release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_click",
]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = f"raftmq {__version__}"
templates_path: list[str] = []
exclude_patterns: list[str] = []
nitpicky = False

myst_heading_anchors = 4
smartquotes = False  # or `--count` would be shown with a dash
default_role = "code"  # docstrings are written with single backticks

autodoc_member_order = "bysource"
autodoc_default_options = {
    "members": True,
    "inherited-members": "object,tuple,int,Enum,Exception,RaftmqError",
}
# Several classes have an attribute `topic`; pages may leave out a level of headings.
suppress_warnings = ["ref.python", "myst.header"]
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # attributes of named tuples are documented once


def _is_left_out(
    app: Sphinx, what: str, _name: str, found: object, *_others: object
) -> bool | None:
    """Errors are on a page of their own, though programs may write `raftmq.TopicAlreadyExists`."""
    is_error = getattr(found, "__module__", "") in ("raftmq.errors", "raftmq.error_numbers")
    return True if what == "module" and is_error and app.env.docname != ERRORS_PAGE else None


def _indent_attributes(
    _app: Sphinx, _what: str, _name: str, _found: object, _options: object, lines: list[str]
) -> None:
    """A docstring that begins with `Attributes:` has lost the indent of what follows."""
    if lines and lines[0] == "Attributes:":
        lines[1:] = [f"    {line}" if line else line for line in lines[1:]]


def _point_to_the_repository(_app: Sphinx, page: str, source: list[str]) -> None:
    """A link out of docs/ to a folder has no page here: it leads to the repository."""
    source[0] = FOLDER_LINK.sub(rf"]({REPOSITORY}/tree/main/\1)", source[0])


def setup(app: Sphinx) -> None:
    app.connect("autodoc-skip-member", _is_left_out)
    app.connect("autodoc-process-docstring", _indent_attributes, priority=400)  # before napoleon
    app.connect("source-read", _point_to_the_repository)
