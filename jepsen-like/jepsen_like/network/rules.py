"""The network's faults in force (cuts, shapes, resets), and their effect on a frame. Pure.

Time and chance are passed in. A link is one-way. At first there are no faults, and `is_clear` says
with one check that a frame may pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    from random import Random

Link: TypeAlias = tuple[str, str]  # names of the hosts: source and target


class Shape(msgspec.Struct, frozen=True):
    """How a link treats what it does not cut.

    Attributes:
    delay_seconds: for every frame; alone it keeps the order.
    jitter_seconds: up to this much more, drawn for each frame, so that frames overtake each other.
    loss, duplicate: how likely a frame vanishes, or arrives twice.
    """

    delay_seconds: float = 0.0
    jitter_seconds: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0


AS_IT_IS = Shape()


class Rules:
    """Attributes:
    is_clear: nothing is broken anywhere.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._cut: set[Link] = set()
        self._shapes: dict[Link, Shape] = {}
        self._reset_until: dict[Link, float] = {}
        self.is_clear = True

    def cut(self, link: Link) -> None:
        self._cut.add(link)
        self._look()

    def shape(self, link: Link, shape: Shape) -> None:
        """Instead of what held for the link; `AS_IT_IS` takes it away."""
        self._shapes.pop(link, None)
        if shape != AS_IT_IS:
            self._shapes[link] = shape
        self._look()

    def reset(self, link: Link, *, until: float) -> None:
        self._reset_until[link] = until
        self._look()

    def heal(self) -> None:
        self._cut.clear()
        self._shapes.clear()
        self._reset_until.clear()
        self._look()

    def is_cut(self, link: Link) -> bool:
        return link in self._cut

    def is_reset(self, link: Link, *, now: float) -> bool:
        """Whether TCP is to be refused there."""
        until = self._reset_until.get(link)
        if until is None:
            return False
        if now < until:
            return True
        del self._reset_until[link]
        self._look()
        return False

    def due_times(self, link: Link, *, now: float) -> tuple[float, ...]:
        """When the frame is to arrive: never, once or twice. Nothing is said of cuts here."""
        shape = self._shapes.get(link)
        if shape is None:
            return (now,)
        if shape.loss and self._random.random() < shape.loss:
            return ()
        first = self._draw_due(shape, now)
        if shape.duplicate and self._random.random() < shape.duplicate:
            return (first, self._draw_due(shape, now))
        return (first,)

    def _draw_due(self, shape: Shape, now: float) -> float:
        jitter = self._random.random() * shape.jitter_seconds if shape.jitter_seconds else 0.0
        return now + shape.delay_seconds + jitter

    def _look(self) -> None:
        self.is_clear = not (self._cut or self._shapes or self._reset_until)
