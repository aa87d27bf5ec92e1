"""view of a large job: a file for each node stands for those of its ranks; what it says is as true as theirs."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from asking import Training, alive, killed, training, until

from hypocenter.nouns import Attempt, Coords, Place, StepRecord
from hypocenter.record.node_file import read_node
from hypocenter.record.place_file import write_place
from hypocenter.view import lives, nodes
from hypocenter.view.findings import Findings
from hypocenter.view.following import MOST_DRAWN, FollowedRun
from hypocenter.view.node import Node

N_NODES, PER_NODE = 8, 8
N = N_NODES * PER_NODE
opened: list[str] = []
sys.addaudithook(lambda event, args: opened.append(f"{event} {args[0]}") if event in ("open", "os.rename") else None)


@pytest.fixture(autouse=True)
def _at_each_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "EVERY_S", 0.0)
    monkeypatch.setattr(nodes, "EVERY_S", 0.0)


def job(path: Path, n: int = N, dead: int = -1) -> Training:
    run = training(path, ranks=n)
    for rank in range(n):
        place = Place(rank=rank, world_size=n, host="here", coords=Coords(tp=rank % 8, dp=rank // 8))
        write_place(path, place, Attempt(host="here"))
        if rank == dead:
            killed(path, rank, n)
        else:
            alive(path, rank, n)
    run.go(3)
    return run


def those(path: Path, n_nodes: int = N_NODES) -> list[Node]:
    return [Node(path, range(at * PER_NODE, (at + 1) * PER_NODE)) for at in range(n_nodes)]


def of(run: Path) -> list[str]:
    found = [each for each in opened if str(run) in each]
    opened.clear()
    return found


def test_files_of_nodes_are_read_in_place_of_those_of_ranks(tmp_path: Path) -> None:
    run = job(tmp_path / "run")
    written = those(run.path)
    for node in written:
        node.look()
    followed = FollowedRun(run.path)
    followed.look()
    of(run.path)
    followed.look()
    of_view = of(run.path)
    written[0].look()
    of_node = of(run.path)

    assert sum("/nodes/" in each for each in of_view) == N_NODES
    assert len({each.split("rank-")[1][:5] for each in of_view if "rank-" in each}) <= MOST_DRAWN < N
    assert [each for each in of_node if "/nodes/" in each] == []  # it is written in place
    assert {state.last_step for state in followed.states()} == {2}
    assert {state.coords.dp for state in followed.states()} == set(range(8))
    assert followed.n_read == N


def test_what_nodes_say_of_a_rank_that_died_and_of_one_that_went_bad_is_told(tmp_path: Path) -> None:
    run = job(tmp_path / "run", dead=37)
    run.writers[42].write([], StepRecord(step=3, loss=math.nan))
    for node in those(run.path):
        node.look()
    followed = FollowedRun(run.path)
    found = Findings(followed)
    for _ in range(2):
        of(run.path)
        followed.look()
        found.look(diagnoses=False)
    read = of(run.path)

    assert [each for each in read if "whereabouts" in each] == []
    assert [(f.code, f.rank) for f in found.diagnosis.findings] == [("HC321", 37)] if found.diagnosis else False
    assert [state.rank for state in followed.states() if state.is_lost] == [37]
    assert (followed.first_bad_step, followed.ranks[42].first_bad_step) == (3, 3)


def test_a_node_that_writes_no_more_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process was killed, and not the ranks: their own files tell."""
    run = job(tmp_path / "run")
    written = those(run.path)
    for node in written:
        node.look()
    followed = FollowedRun(run.path)
    followed.look()
    run.go(1)
    for node in written[1:]:
        node.look()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + nodes.STALE_S + 1)
    for node in written[1:]:
        node.look()
    followed.look()

    assert set(followed.notes) == set(range(PER_NODE, N))
    assert {state.last_step for state in followed.states()} == {3}
    assert not any(state.is_lost for state in followed.states())


@pytest.mark.parametrize(
    "damage", [lambda b: b[:40], lambda b: b"\xff" * len(b), lambda b: b[:60] + b"!" + b[61:], lambda _: b""]
)
def test_a_damaged_file_is_none(tmp_path: Path, damage: object) -> None:
    run = job(tmp_path / "run", PER_NODE)
    those(run.path, 1)[0].look()
    path = run.path / "nodes" / "00000"
    known = read_node(path)
    data = path.read_bytes()
    half = len(data) // 2
    path.write_bytes(damage(data[half:]) + damage(data[half:]))  # type: ignore[operator]
    followed = FollowedRun(run.path)
    followed.look()

    assert known is not None
    assert known[0] == 1
    assert followed.notes == {}
    assert {state.last_step for state in followed.states()} == {2}


def test_its_process_tells_of_the_end_and_ends_with_the_ranks(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run = job(path, 2, dead=1)
    sleeper = "import sys,time; sys.path.insert(0, sys.argv[1]); from asking import alive; from pathlib import Path; "
    sleeper += "alive(Path(sys.argv[2]), 0, 2); print('on', flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", sleeper, str(Path(__file__).parent), str(path)], stdout=subprocess.PIPE
    ) as rank:
        assert rank.stdout is not None
        rank.stdout.readline()
        words = [sys.executable, "-m", "hypocenter.view.node", str(path), "0", "2"]
        starter = f"import os, subprocess; command = [*{words}, str(os.getpid())]; "
        starter += "print(subprocess.Popen(command, stdout=subprocess.DEVNULL).pid)"
        started = subprocess.run([sys.executable, "-c", starter], stdout=subprocess.PIPE, check=True)

        def lives_of() -> str:
            found = read_node(path / "nodes" / "00000")
            return str([note.life for note in found[1].ranks.values()]) if found else ""

        until(lives_of, "['running', 'gone']")
        rank.kill()
    until(lives_of, "['gone', 'gone']")
    until(lambda: str(_is_there(int(started.stdout))), "False")
    run.end()


def _is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_rank_without_whereabouts_has_its_place_once_it_is_known(tmp_path: Path) -> None:
    """MindSpore's ranks write none; and rank.json is written when a rank has found its groups, after its folder."""
    host = socket.gethostname()
    run = training(tmp_path / "run", ranks=2)
    node, path = Node(run.path, range(2)), run.path / "nodes" / "00000"
    node.look()
    before = read_node(path)
    for rank in range(2):
        write_place(run.path, Place(rank=rank, world_size=2, host=host, coords=Coords(dp=rank)), Attempt(host=host))
    run.go(3)
    lives = node.look()
    found = read_node(path)
    followed = FollowedRun(run.path)
    followed.look()

    assert before is None
    assert found is not None
    assert not lives
    assert [(note.seen, note.place.coords.dp, note.last.step) for note in found[1].ranks.values()] == [  # type: ignore[union-attr]
        (None, 0, 2), (None, 1, 2),
    ]  # fmt: skip
    assert [(state.coords.dp, state.last_step) for state in followed.states()] == [(0, 2), (1, 2)]
    assert set(followed.notes) == {0, 1}
    assert followed.lives.findings == []
