"""Packet faults: reset connections, delay, jitter, loss and duplication on a node's links.

All links of the target nodes are affected, both ways, those to the clients included.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jepsen_like.nemesis.machines import host_of
from jepsen_like.network.hosts import CLIENTS

if TYPE_CHECKING:
    from jepsen_like.nemesis.fault import Scene, Told
    from jepsen_like.network.links import Links


def links_of(scene: Scene) -> list[tuple[str, str]]:
    """Each pair of hosts once, one of which is hit."""
    hosts = [*map(host_of, scene.machines.node_ids), CLIENTS.name]
    hit = {host_of(node) for node in scene.nodes}
    return [
        (one, other)
        for place, one in enumerate(hosts)
        for other in hosts[place + 1 :]
        if one in hit or other in hit
    ]


class _Trouble:
    """Attributes:
    scene: whom it hits, and how.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene, self._has_begun = scene, False

    def begin(self) -> Told:
        links = self.scene.machines.links
        assert links is not None, "a cluster without a network of its own has no such faults"
        self._has_begun = True
        for one, other in links_of(self.scene):
            self.bother(links, one, other)
        return {}

    def end(self) -> Told:
        links = self.scene.machines.links
        if self._has_begun and links is not None:
            links.heal()
        self._has_begun = False
        return {}

    def bother(self, links: Links, one: str, other: str) -> None:
        raise NotImplementedError


class Reset(_Trouble):
    """Connections break at once, and new ones are refused."""

    def bother(self, links: Links, one: str, other: str) -> None:
        links.reset(one, other)


class Packets(_Trouble):
    """Delay, jitter, loss, duplicates, as `params` say."""

    def bother(self, links: Links, one: str, other: str) -> None:
        links.shape(one, other, **self.scene.params)
        links.shape(other, one, **self.scene.params)
