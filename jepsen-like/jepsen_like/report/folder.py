"""The folder of a run: its files, and everything that can be reported from them again.

Owns the names of the files. A run that was killed has a history and no verdict; it is judged when
its report is asked for, and its plots are drawn then.
"""

from __future__ import annotations

from textwrap import shorten
from typing import TYPE_CHECKING

import msgspec

from jepsen_like.checkers.verdict import judge as judge_all
from jepsen_like.history.event import FILE_NAME, encode_line, read_history
from jepsen_like.report.figures import figures_of
from jepsen_like.report.judgement import (
    UNKNOWN,
    WORDS,
    cut_short,
    decode_verdict,
    encode_verdict,
    outcome_of,
)
from jepsen_like.report.recovery import recoveries_of
from jepsen_like.report.spans import is_run_to_its_end
from jepsen_like.report.summary import (
    RunContent,
    numbers_line,
    setting_line,
    summary_of,
    verdict_line,
)
from jepsen_like.report.surroundings import encode_surroundings, look_around, read_surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from jepsen_like.checkers.verdict import Verdict
    from jepsen_like.history.event import Event
    from jepsen_like.report.surroundings import Surroundings
    from jepsen_like.settings import RunSettings

TITLE_LETTERS_MAX, SUBTITLE_LETTERS_MAX = 105, 190
CONTENTS = {
    FILE_NAME: "what was asked and answered, one event a line",
    "verdict.json": "what the checkers found",
    "summary.txt": "this page",
    "timeline.png": "what was done each second, and what was broken",
    "latency.png": "how long operations took",
    "nodes": "what each node logged",
    "settings.json": "what was asked for, and where it ran",
}


class RunFolder:
    """Attributes:
    path: of the folder; need not exist yet.
    """

    def __init__(
        self,
        path: Path,
        *,
        judge: Callable[[Sequence[Event]], Verdict] = judge_all,
        is_drawn: bool = True,
    ) -> None:
        """`judge`: for a run without a verdict. `is_drawn`: pictures are written, too."""
        self.path = path
        self.history_path = path / FILE_NAME
        self.settings_path = path / "settings.json"
        self.verdict_path = path / "verdict.json"
        self.summary_path = path / "summary.txt"
        self.timeline_path = path / "timeline.png"
        self.latency_path = path / "latency.png"
        self.nodes_path = path / "nodes"
        self._judge, self._is_drawn = judge, is_drawn
        self._content: RunContent | None = None

    def begin(self, settings: RunSettings, *, capabilities: Mapping[str, str]) -> None:
        """Before anything happens, so that a run that is killed can still be reported.

        `capabilities`: by name, why it is missing; "" where it is there.
        """
        self.nodes_path.mkdir(parents=True, exist_ok=True)
        found = look_around(settings, capabilities=capabilities)
        self.settings_path.write_bytes(encode_surroundings(found))

    def write(self, history: Sequence[Event], verdict: Verdict) -> None:
        """All that comes after a run. The history stays as it is where it was written already."""
        if not self.history_path.exists():
            self.history_path.write_bytes(b"".join(map(encode_line, history)))
        self._write_content(history, verdict)

    def read(self) -> RunContent:
        """From the files alone.

        Raises:
            OSError: there is no run in this folder.
            BadSettings, BadHistory: a file says something else.
        """
        if self._content is None:
            surroundings = read_surroundings(self.settings_path)
            history = read_history(self.history_path)
            verdict = self._kept_verdict()
            self._content = (
                _content(history, verdict, surroundings)
                if verdict
                else self._write_content(history, self._judged(history))
            )
        return self._content

    def summary(self) -> str:
        """Raises: as `read`."""
        return self._page(self.read())

    def outcome(self) -> str:
        """A folder without a run proves nothing."""
        content = self.content_if_any()
        return outcome_of(content.verdict) if content else UNKNOWN

    def headline(self) -> str:
        content = self.content_if_any()
        if content is None:
            return f"{WORDS[UNKNOWN]}: there is no run in {self.path}"
        return f"{verdict_line(content.verdict)} ({numbers_line(content.figures)})"

    def content_if_any(self) -> RunContent | None:
        try:
            return self.read()
        except FileNotFoundError:
            return None

    def _write_content(self, history: Sequence[Event], verdict: Verdict) -> RunContent:
        self.verdict_path.write_bytes(encode_verdict(verdict))
        content = _content(history, verdict, read_surroundings(self.settings_path))
        if self._is_drawn:
            self._draw(history, content)
        self.summary_path.touch()  # it lists itself
        self.summary_path.write_text(self._page(content))
        self._content = content
        return content

    def _kept_verdict(self) -> Verdict | None:
        """None also where the run was killed while it wrote it."""
        try:
            return decode_verdict(self.verdict_path.read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _judged(self, history: Sequence[Event]) -> Verdict:
        verdict = self._judge(history)
        return verdict if is_run_to_its_end(history) else cut_short(verdict)

    def _page(self, content: RunContent) -> str:
        width = max(map(len, CONTENTS))
        there = {name: told for name, told in CONTENTS.items() if (self.path / name).exists()}
        lines = [f"{name:{width}}  {told}" for name, told in there.items()]
        if self.timeline_path.name not in there:
            lines.append("(pictures need matplotlib: raftmq[jepsen])")
        return summary_of(content, [str(self.path), *lines])

    def _draw(self, history: Sequence[Event], content: RunContent) -> None:
        try:
            from jepsen_like.report.latency import write_latency
            from jepsen_like.report.timeline import write_timeline
        except ImportError:  # the pictures are not worth a run
            return
        title = shorten(verdict_line(content.verdict), TITLE_LETTERS_MAX)
        settings = setting_line(content.surroundings, content.figures)
        subtitle = shorten(f"{settings}; {numbers_line(content.figures)}", SUBTITLE_LETTERS_MAX)
        write_timeline(history, self.timeline_path, title=title, subtitle=subtitle)
        write_latency(history, self.latency_path, title=title, subtitle=subtitle)


def _content(history: Sequence[Event], verdict: Verdict, surroundings: Surroundings) -> RunContent:
    return RunContent(verdict, figures_of(history), recoveries_of(history), surroundings)
