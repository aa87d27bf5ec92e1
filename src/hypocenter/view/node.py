"""`python -m hypocenter.view.node RUN FIRST COUNT PARENT`: write down, once a second, how this node's ranks do.

It runs beside the first rank of each node of a large job (session/beside_node.py), when no other program wants the
processor. What it reads was just written on the same machine. It ends with the ranks, and tells of their end.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from hypocenter.nouns import replace
from hypocenter.record.node_file import NodeFile, NodeNote, RankNote
from hypocenter.record.ship_apart import give_way
from hypocenter.view.following import FollowedRun

EVERY_S = 1.0


class Node:
    """The ranks of this node, followed.

    Args:
        directory: of the run.
        ranks: those that the launcher has put here.
    """

    def __init__(self, directory: Path, ranks: range) -> None:
        self._directory, self._ranks, self._host = directory, ranks, socket.gethostname()
        self._run = FollowedRun(directory, only=ranks)
        self._file: NodeFile | None = None

    def look(self) -> bool:
        """Write what is known now; return whether a process of these ranks still lives."""
        self._run.look()
        notes = {rank: note for rank in self._run.ranks if (note := self._note(rank)) is not None}
        if notes:
            self._file = self._file or NodeFile(self._directory, self._ranks.start, len(self._ranks))
            self._file.write(NodeNote(host=self._host, written_ns=time.time_ns(), ranks=notes))
        return any(note.life in ("running", "stopped") for note in notes.values())

    def _note(self, rank: int) -> RankNote | None:
        run, lives = self._run, self._run.lives
        seen, place, now = lives.seen(rank), run.places.get(rank), run.ranks[rank]
        host = seen.host if seen is not None else place.host if place is not None else ""
        if host != self._host:  # the launcher numbers otherwise: whoever reads looks itself
            return None
        evidence_ns = 0
        with suppress(OSError):
            evidence_ns = (run.folders[rank] / "bundles").stat().st_mtime_ns
        seen = replace(seen, stack=seen.stack[:500]) if seen is not None else None
        return RankNote(
            seen=seen, life=lives.life_of(rank), last=now.last,
            place=replace(place, groups={}, layers={}) if place is not None else None,
            first_bad_step=now.first_bad_step, evidence_ns=evidence_ns,
        )  # fmt: skip


def main(words: list[str]) -> int:
    """Go on until the process that started this one, which may be gone by now, and all ranks are gone."""
    run, (first, count, parent) = Path(words[0]), map(int, words[1:])
    give_way()
    node = Node(run, range(first, first + count))
    while run.is_dir():
        began_s, is_alone = time.monotonic(), os.getppid() != parent
        try:
            lives = node.look()
        except OSError:  # a full disk, a server that is away
            lives = True
        if is_alone and not lives:
            break
        time.sleep(max(0.1, EVERY_S - (time.monotonic() - began_s)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
