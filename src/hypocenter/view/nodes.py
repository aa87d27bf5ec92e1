"""What the nodes of a large job say of their ranks: a file for each node, read at most twice a second."""

from __future__ import annotations

import time
from pathlib import Path

from hypocenter.record.layout import NODES_FOLDER
from hypocenter.record.node_file import NodeNote, RankNote, read_node

EVERY_S = 0.5  # between two looks
STALE_S = 5.0  # a node that has written nothing for so long says nothing: its ranks' own files are looked at
_OLD_S = 60.0  # what was written so long ago when it is first seen is not waited for; clocks differ by less


class Nodes:
    """The node files of one run.

    Attributes:
        notes: of the ranks whose node goes on writing, or has said its last of a run that is over.
    """

    def __init__(self, run: Path) -> None:
        self._folder = run / NODES_FOLDER
        self._listed_ns, self._next_s = 0, 0.0
        self._heard: dict[Path, tuple[tuple[int, NodeNote] | None, float]] = {}  # by file, and when it came here
        self.notes: dict[int, RankNote] = {}

    def look(self, *, is_running: bool) -> None:
        """Read each file once. Damage and absence are the same: there is no note."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        try:
            changed_ns = self._folder.stat().st_mtime_ns
            if changed_ns != self._listed_ns:
                names = [path for path in self._folder.iterdir() if not path.name.startswith(".")]
                self._heard = {path: self._heard.get(path, (None, now_s)) for path in names}
                self._listed_ns = changed_ns
        except OSError:
            return
        notes: dict[int, RankNote] = {}
        for path, (known, heard_s) in list(self._heard.items()):
            found = read_node(path, known)
            if found is None:
                continue
            if found is not known:
                is_old = known is None and abs(time.time() - found[1].written_ns / 1e9) > _OLD_S
                heard_s = -STALE_S if is_old else now_s
                self._heard[path] = found, heard_s
            if is_running and now_s - heard_s > STALE_S:
                continue
            for rank, note in found[1].ranks.items():  # a rank may have moved: its later process counts
                if rank not in notes or note.started_ns > notes[rank].started_ns:
                    notes[rank] = note
        self.notes = notes
