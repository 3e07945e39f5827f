"""A restored backup: a node's directory is put back as it was before its last registration.

The copy is older than the registration that the cluster knows, so that brokers and voters must
distinguish it from a crash: the broker's records do not count, and the voter is rejected. A copy of
the same registration could not be recognised, and is outside of what is promised.

    kill  copy  start ... registered, in use ...  kill  put back  start  [refused: empty, start]
    |----------- begin ----------|                |------------------- end -------------------|
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from jepsen_like.nemesis import directories
from jepsen_like.nemesis.damage import replace_disk_unless_up
from jepsen_like.nemesis.fault import comes_up, start_missing
from raftmq.broker.meta import FILE_NAME as META_NAME
from raftmq.broker.meta import DirectoryMeta
from raftmq.metadata.commands import NO_EPOCH

if TYPE_CHECKING:
    from jepsen_like.nemesis.fault import Scene, Told

PREFIX = "jepsen-like-copy-"
LOOK_SECONDS = 0.25  # between checks for the registration
REGISTERED_LOOKS = 60  # 15 seconds: the session of the process before it may have to time out (9 s)


class OldDirectory:
    def __init__(self, scene: Scene) -> None:
        assert len(scene.nodes) == 1, f"one disk at a time, not those of {scene.nodes}"
        self._scene = scene
        self._node = scene.nodes[0]
        self._has_begun = self._is_registered = False
        self._copy: Path | None = None

    def begin(self) -> Told:
        machines = self._scene.machines
        self._has_begun = True
        self._kill()
        root = machines.data_directory(self._node)
        # Beside the cluster's data, to be removed with it, also if the harness is killed.
        self._copy = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root.parent))
        directories.copy(root, self._copy)
        machines.start(self._node)
        self._is_registered = comes_up(machines, self._node) and self._wait_registered()
        return {"registered_anew": self._is_registered}

    def _wait_registered(self) -> bool:
        """The node stores the broker epoch of its registration."""
        root = self._scene.machines.data_directory(self._node)
        for _ in range(REGISTERED_LOOKS):
            if registered_epoch(root) != registered_epoch(self._copy or root):
                return True
            self._scene.sleep(LOOK_SECONDS)
        return False

    def end(self) -> Told:
        has_begun, self._has_begun = self._has_begun, False
        if not has_begun:
            return {}
        try:
            return self._put_back()
        finally:
            if self._copy is not None:
                shutil.rmtree(self._copy)

    def _put_back(self) -> Told:
        """Only a copy that is certainly older than the registration."""
        machines = self._scene.machines
        if not self._is_registered or self._copy is None:
            start_missing(machines, self._scene.nodes)
            return {"put_back": False}
        self._kill()
        root = machines.data_directory(self._node)
        directories.empty(root)
        directories.copy(self._copy, root)
        machines.start(self._node)
        return {"put_back": True} | replace_disk_unless_up(self._scene)

    def _kill(self) -> None:
        if self._scene.machines.is_running(self._node):
            self._scene.machines.kill(self._node)


def registered_epoch(root: Path) -> int:
    """Of the last registration that the directory remembers; -1: of none."""
    try:
        return msgspec.json.decode((root / META_NAME).read_bytes(), type=DirectoryMeta).broker_epoch
    except FileNotFoundError:
        return NO_EPOCH
