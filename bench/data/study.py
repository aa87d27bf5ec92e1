"""One program with a fault of its data, and what is said of it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hypocenter
from bench.data.faults import FAULTS
from bench.data.loaders import LOADERS, N_CLASSES, N_IDS, ROWS, Batch, Epoch, in_order, samples, stream
from hypocenter.config import Config, to_json
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run
from hypocenter.session import start
from hypocenter.session.handle import Handle

N_BATCHES = 48  # of a pass
AFTER = 8  # steps after the fault
IGNORED = -100  # cross entropy's ignore_index
CODES = ("HC411", "HC412", "HC413")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What was said."""

    fault: str
    loader: str
    step: int  # -1: nothing was planted
    is_first_pass: bool
    found: Finding | None  # by a rule that may name it, at its step
    false: Sequence[Finding]  # at other steps


class Reads(nn.Module):
    """Classes of pictures with a text, and the text's words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(2 * N_IDS, 16)
        self.pixels, self.classes = nn.Linear(24, 16), nn.Linear(16, N_CLASSES + 1)
        self.next_word = nn.Linear(16, 2 * N_IDS)

    def forward(self, x: Tensor, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        words = self.words(ids)
        text = (words * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return self.classes(torch.tanh(text + self.pixels(x.flatten(1)))), self.next_word(words)


def train(folder: Path, batches: Iterator[Batch], n_steps: int, checkpoint: Path, *, first: int = 0) -> None:
    """Some steps from a checkpoint, or from the start; saves one at the end."""
    torch.manual_seed(0)
    net = Reads()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    if first:
        net_state, optimizer_state = torch.load(checkpoint)
        net.load_state_dict(net_state)
        optimizer.load_state_dict(optimizer_state)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=folder, audit="never"):
        for _, batch in zip(range(n_steps), batches, strict=False):
            optimizer.zero_grad()
            classes, words = net(batch["x"], batch["ids"], batch["mask"])
            loss = F.cross_entropy(classes, batch["label"])
            loss = loss + F.cross_entropy(words.flatten(0, 1), batch["labels"].flatten(), ignore_index=IGNORED)
            loss.backward()
            optimizer.step()
    torch.save((net.state_dict(), optimizer.state_dict()), checkpoint)


def endless(epoch: Epoch, *, first_pass: int = 0, n_skipped: int = 0) -> Iterator[Batch]:
    """Pass after pass, from a batch of the first on."""
    passes = chain.from_iterable(epoch(number) for number in count(first_pass))
    for number, batch in enumerate(passes):
        if number >= n_skipped:
            yield {**batch, "labels": torch.where(batch["mask"] > 0, batch["ids"], IGNORED)}


def planted(batches: Iterator[Batch], fault: str, step: int) -> Iterator[Batch]:
    """With the fault at a step."""
    past: list[Batch] = []
    for number, batch in enumerate(batches):
        batch = FAULTS[fault].plant(batch, past) if number == step else batch
        past = [*past[-24:], batch]
        yield batch


def one(fault: str, loader: str, seed: int, *, is_first_pass: bool) -> Outcome:
    """A fault of one batch; "" plants none, in 3 passes."""
    random = torch.Generator().manual_seed(seed)
    step = int(torch.randint(36, N_BATCHES - 1, (1,), generator=random)) + (0 if is_first_pass else N_BATCHES)
    epoch = LOADERS[loader](samples(ROWS * N_BATCHES, seed))
    batches = endless(epoch)
    with _folder() as folder:
        if not fault:
            train(folder, batches, 3 * N_BATCHES, folder / "checkpoint")
            return _outcome(folder, "", loader, -1, is_first_pass)
        train(folder, planted(batches, fault, step), step + AFTER, folder / "checkpoint")
        return _outcome(folder, fault, loader, step, is_first_pass, FAULTS[fault].codes)


def resumed(what: str, loader: str, seed: int, *, is_first_pass: bool) -> Outcome:
    """A run that goes on from a checkpoint with other data than came next.

    Args:
        what: anew (from the start of the pass), back (8 batches), skips (8 batches), right (as it should).
    """
    at = 40 + (0 if is_first_pass else N_BATCHES)
    data = samples(ROWS * N_BATCHES, seed)
    epoch = in_order(data) if loader == "DataLoader, in order" else LOADERS[loader](data)
    begin = {"anew": 0, "back": at - 8, "skips": at + 4, "right": at}[what]
    first_pass = at // N_BATCHES + 7 if what == "anew" else 0
    with _folder() as folder:
        checkpoint = folder / "checkpoint"
        _attempt(0, folder / "run", endless(epoch), at, checkpoint, 0)
        later = endless(epoch, first_pass=first_pass, n_skipped=begin)
        _attempt(1, folder / "run", later, 60, checkpoint, at)
        step = -1 if what == "right" else at
        return _outcome(folder / "run", f"resumed: {what}", loader, step, is_first_pass, ("HC411",))


def _attempt(number: int, folder: Path, batches: Iterator[Batch], n_steps: int, checkpoint: Path, first: int) -> None:
    """In a process of its own, as the worker of a launcher that has started it so often before."""

    def child() -> None:
        os.environ["TORCHELASTIC_RESTART_COUNT"] = str(number)
        if number:  # the recording is there: as `hypocenter run` hands it to a worker
            os.environ |= {"HYPOCENTER_RUN": str(folder), "HYPOCENTER_CONFIG": to_json(Config(audit="never"))}
            start.start_from_env()
        train(folder, batches, n_steps, checkpoint, first=first)
        if number:
            Handle(start._current[-1], start._current, rank=lambda: (0, 1)).close()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"attempt {number} ended with {process.exitcode}")


def same_workers(seed: int) -> Outcome:
    """Each worker of a stream reads all of it."""
    with _folder() as folder:
        batches = endless(stream(samples(ROWS * N_BATCHES, seed), is_shared=False))
        train(folder, batches, 40, folder / "checkpoint")
        return _outcome(folder, "each worker reads all", "IterableDataset, 2 workers", 1, True, ("HC411",))


def _outcome(
    folder: Path, fault: str, loader: str, step: int, is_first_pass: bool, codes: Sequence[str] = ()
) -> Outcome:
    said = [each for each in diagnose(open_run(folder)).findings if each.code in CODES]
    found = next((each for each in said if each.code in codes and each.step == step), None)
    false = [each for each in said if each.step != step]
    return Outcome(fault=fault, loader=loader, step=step, is_first_pass=is_first_pass, found=found, false=false)


@contextlib.contextmanager
def _folder() -> Generator[Path]:
    folder = Path(tempfile.mkdtemp())
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
