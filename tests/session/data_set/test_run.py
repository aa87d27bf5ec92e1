"""In a run: a law that is broken is a finding at the first step, and the run is what it would be without Hypocenter."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run
from hypocenter.session.data_set import child
from hypocenter.session.observers import data_set
from tests.session.data_set import sets


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What was asked in a child. Other tests of this process may have left shared memory: see test_child.py."""
    asked: list[int] = []

    def question(answer: Callable[[], bytes], seconds: float) -> child.Question:
        asked.append(os.getpid())
        opened = child.Question(answer, 30 * seconds)
        opened.look(30 * seconds)
        return opened

    monkeypatch.setattr(data_set, "Question", question)
    monkeypatch.setattr(data_set, "SECONDS", 600.0)
    monkeypatch.setattr(data_set, "may_fork", lambda *_, **__: True)
    return asked


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(40, 6), nn.Linear(6, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(tokens).mean(1))


def train(loader: Any, *, n_passes: int = 2) -> str:
    """Train on inputs and labels; return a digest of weights and random states."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    x = next(iter(loader))[0]
    model: nn.Module = nn.Linear(x.shape[-1], 4) if x.is_floating_point() else Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(n_passes):
        for x, *_, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    state = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
    drawn = torch.rand(3).numpy().tobytes() + repr((random.random(), np.random.rand())).encode()
    return hashlib.sha256(state + drawn).hexdigest()


def watched(out: Path, loader: Any, **options: Any) -> tuple[list[Finding], str]:
    with hypocenter.watch(out=str(out), **options):
        end = train(loader)
    return [each for each in diagnose(open_run(out)).findings if each.code == "HC415"], end


def of(dataset: Any, **options: Any) -> Any:
    return DataLoader(dataset, batch_size=6, shuffle=True, **options)


@pytest.mark.parametrize(
    ("loader", "site", "title", "line"),
    [
        (lambda: of(sets.CutOut()), "CutOut", "changes the data set", "def __getitem__"),
        (lambda: of(sets.OneArray()), "OneArray", "lie in one memory", "def __getitem__"),
        (lambda: of(sets.Words(), collate_fn=sets.sorted_apart), "sorted_apart", "parts what", "def sorted_apart"),
        (lambda: of(sets.OneTensorOfTwo(), num_workers=2), "OneTensorOfTwo", "lie in one memory", "def __getitem__"),
    ],
)  # fmt: skip
def test_what_is_broken_is_told_once(
    tmp_path: Path, loader: Callable[[], Any], site: str, title: str, line: str
) -> None:
    plain = train(loader())
    found, end = watched(tmp_path / "run", loader())

    assert [(each.site, each.severity, each.step) for each in found] == [(site, "warning", 0)]
    assert title in found[0].title
    assert found[0].source is not None
    assert line in found[0].source.text
    assert end == plain


@pytest.mark.parametrize(
    "loader",
    [
        lambda: of(sets.DrawsOfAll()),
        lambda: of(sets.DrawsOfAll(), num_workers=2),
        lambda: of(sets.DrawsOfAll(), num_workers=1, persistent_workers=True),
        lambda: of(sets.OwnGenerator()),
        lambda: of(sets.Words(), collate_fn=sets.sorted_together),
        lambda: of(sets.Words(), collate_fn=sets.masked_inputs),
    ],
)
def test_what_keeps_to_the_laws_is_asked_and_trains_the_same(
    tmp_path: Path, forks: list[int], loader: Callable[[], Any]
) -> None:
    plain = train(loader())
    found, end = watched(tmp_path / "run", loader())

    assert len(forks) == 2  # each pass
    assert found == []
    assert end == plain


class Counts(sets.DrawsOfAll):
    n = 0

    def __getitem__(self, i: int) -> Any:
        self.n += 1
        return super().__getitem__(i)


def test_a_data_set_and_its_file_are_where_they_would_be(tmp_path: Path, forks: list[int]) -> None:
    counted, filed = Counts(), sets.OfAFile(tmp_path / "images")
    watched(tmp_path / "counted", of(counted))
    _, end = watched(tmp_path / "filed", of(filed))
    again = sets.OfAFile(tmp_path / "again")
    plain = train(of(again))

    assert counted.n == filed.n == again.n == 2 * sets.N + 6
    assert filed.file.tell() == again.file.tell()
    assert end == plain
    assert forks


def test_no_more_than_four_passes_are_asked_about(tmp_path: Path, forks: list[int]) -> None:
    with hypocenter.watch(out=str(tmp_path / "run")):
        train(of(sets.DrawsOfAll()), n_passes=7)

    assert len(forks) == data_set.MOST


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ((image, at % 3) for at, image in enumerate(sets.images()))


@pytest.mark.parametrize(
    "loader",
    [
        lambda: of(TensorDataset(sets.images(), torch.arange(sets.N) % 3)),
        lambda: DataLoader(Stream(), batch_size=6),
        lambda: of(Shares()),
    ],
)
def test_who_is_not_asked(tmp_path: Path, forks: list[int], loader: Callable[[], Any]) -> None:
    assert watched(tmp_path / "run", loader())[0] == []
    assert forks == []


class Shares(sets.Plain):
    def __init__(self) -> None:
        super().__init__()
        self.images.share_memory_()


@pytest.mark.parametrize("options", [{"relations": "never"}, {"audit": "never"}])
def test_where_steps_may_not_be_done_again(tmp_path: Path, forks: list[int], options: dict[str, Any]) -> None:
    assert watched(tmp_path / "run", of(sets.CutOut()), **options)[0] == []
    assert forks == []


def test_on_several_ranks_only_who_forks_is_asked(
    tmp_path: Path, forks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    watched(tmp_path / "alone", of(sets.DrawsOfAll()))
    assert forks == []

    watched(tmp_path / "forking", of(sets.DrawsOfAll(), num_workers=1))
    assert forks


def test_a_loader_that_feeds_no_step_is_not_asked(tmp_path: Path, forks: list[int]) -> None:
    held_out, loader = of(sets.CutOut()), of(TensorDataset(sets.images(), torch.arange(sets.N) % 3))
    with hypocenter.watch(out=str(tmp_path / "run")):
        for _ in held_out:
            pass
        train(loader)

    assert forks == []


def test_a_look_that_fails_leaves_the_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_set, "Question", lambda *_: int("no number"))
    plain = train(of(sets.CutOut()))

    found, end = watched(tmp_path / "run", of(sets.CutOut()))

    assert found == []
    assert end == plain


def test_a_program_of_its_own_is_forked_for_real(tmp_path: Path) -> None:
    script = f"""
import hypocenter, torch
from torch.utils.data import DataLoader
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run
from tests.session.data_set import sets
model = torch.nn.Linear(sets.WIDTH, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with hypocenter.watch(out={str(tmp_path / "run")!r}):
    for x, y in DataLoader(sets.CutOut(), batch_size=6, shuffle=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
print([each.code for each in diagnose(open_run({str(tmp_path / "run")!r})).findings if each.severity != "note"])
"""
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root)

    assert done.stdout == "['HC415']\n"
