"""Pages lead where they say, and draw what is there; `make docs` checks links of docs/, too."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
TOPICS = re.compile(r"TOPIC\b.* = ")
TOPIC_MADE = re.compile(r"""(?:create_topic\(|topic create )"?([\w.-]+)""")
LAYERS = re.compile(r"^## Layers\n[\s\S]*?\n\n((?:    .*\n)+)", re.MULTILINE)


def pages() -> list[Path]:
    places = ("*.md", "docs/**/*.md", "examples/**/*.md", "changes/README.md")
    return sorted(page for place in places for page in ROOT.glob(place))


def anchor(heading: str) -> str:
    """As GitHub and MyST make one."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def leads_somewhere(page: Path, link: str) -> bool:
    name, _, place = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.exists():
        return False
    headings = HEADING.findall(target.read_text("utf-8")) if place else ()
    return not place or place in {anchor(heading) for heading in headings}


def test_topics_of_programs_are_their_own() -> None:
    """One cluster for the README, the tutorial and the examples: no program finds another's topic
    with other partitions, or records that it cannot read.
    """
    tutorial = "".join(page.read_text("utf-8") for page in ROOT.glob("docs/tutorial/*.md"))
    first_steps = (ROOT / "README.md", ROOT / "docs/pictures/take.py")
    made = [name for page in first_steps for name in TOPIC_MADE.findall(page.read_text("utf-8"))]
    for example in sorted(ROOT.glob("examples/*.py")):
        named = [line for line in example.read_text("utf-8").splitlines() if TOPICS.match(line)]
        made += [name for line in named for name in re.findall(r'"([^"]+)"', line)]
    assert {"fruit", "orders", "greetings", "sums.failed"} <= {*made}
    assert len(made) == len({*made}), sorted(made)
    taken = [name for name in made if re.search(rf'"{name}"|(create|consume) {name}\b', tutorial)]
    assert not taken, "the tutorial uses these, too"


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    """A page was moved, or a heading reworded, and a reader ends at the top of something else."""
    wrong = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages()
        for link in LINK.findall(CODE.sub("", page.read_text("utf-8")))
        if "://" not in link and not leads_somewhere(page, link)
    ]
    assert not wrong, "lead nowhere:\n" + "\n".join(wrong)


def test_the_layers_in_architecture_are_those_that_are_checked() -> None:
    """The list of the page names every layer of the import contract, in its order."""
    found = LAYERS.search((ROOT / "docs/ARCHITECTURE.md").read_text("utf-8"))
    assert found
    drawn = [re.split(r"  +", line.strip())[0] for line in found[1].splitlines()]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layers = next(each["layers"] for each in contracts["contracts"] if each["type"] == "layers")
    assert _names(drawn) == _names([f"{layers[1]}, {layers[0]}", *layers[2:]])


def _names(lines: list[str]) -> list[set[str]]:
    return [set(re.findall(r"\w+", line)) for line in lines]
