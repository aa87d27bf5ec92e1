"""A small program that dies in a given way at a given step.

    dying.py WAY [--at 6] [--steps 12]

Says `step S loss L` on stdout after each step. Ways: see `die` and the table in test_deaths.py.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import sys
import threading
import time

import torch
from torch import nn


class Model(nn.Module):
    """Tokens to classes; `way` is set at the step in which it is to die."""

    way = ""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(64, 8)
        self.head = nn.Linear(8, 10)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.tokens(ids)
        if self.way == "model":
            raise ValueError("no such head")
        if self.way == "gather":
            hidden = hidden.gather(1, torch.full((4, 1, 8), 9))
        if self.way == "advanced":
            hidden = hidden[:, torch.tensor([0, 5, 11])]
        return self.head(hidden.mean(1))


class Data(torch.utils.data.Dataset):
    """Forty-eight rows; the one numbered `bad` cannot be read."""

    def __init__(self, bad: int) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == self.bad:
            raise KeyError("row without a label")
        return torch.arange(index, index + 6) % 64, torch.tensor(index % 10)


class Picky(torch.optim.SGD):
    """An optimizer that fails."""

    def step(self, closure=None):
        if Model.way == "optimizer":
            raise RuntimeError("no state for this parameter")
        return super().step(closure)


def die(way: str) -> None:
    """In the program's own code, between two steps."""
    if way == "memory":
        torch.empty(1 << 50)
    elif way == "python-memory":
        bytearray(1 << 60)
    elif way == "os-exit":
        os._exit(0)
    elif way == "segmentation-fault":
        ctypes.string_at(0)
    elif way == "exit-3":
        sys.exit(3)
    elif way == "deadlock":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background has it ignored
        lock = threading.Lock()
        lock.acquire()
        threading.Thread(target=interrupt_when_stuck, args=(threading.get_ident(),)).start()
        wait_for(lock)
    elif way in ("SIGKILL", "SIGTERM"):
        os.kill(os.getpid(), signal.Signals[way])


def wait_for(lock: threading.Lock) -> None:
    lock.acquire()


def interrupt_when_stuck(thread: int) -> None:
    """As the user does who sees that nothing moves: on a busy machine that may take a while."""
    while True:
        frame = sys._current_frames()[thread]
        if frame.f_code is wait_for.__code__ and frame.f_lineno > wait_for.__code__.co_firstlineno:
            break
        time.sleep(0.01)
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way")
    parser.add_argument("--at", type=int, default=6)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    torch.manual_seed(0)
    if args.way == "full-disk":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python does when it starts
        resource.setrlimit(resource.RLIMIT_FSIZE, (6 << 10, resource.RLIM_INFINITY))
    model = Model()
    optimizer = Picky(model.parameters(), lr=0.1)
    batches = torch.utils.data.DataLoader(Data(bad=4 * args.at + 2 if args.way == "data" else -1), batch_size=4)
    for step, (ids, labels) in enumerate(batches):
        if step == args.at:
            Model.way = args.way
            die(args.way)
            if args.way == "token":
                ids[2, 5] = 70
            if args.way == "label":
                labels[3] = 12
        loss = nn.functional.cross_entropy(model(ids), labels)
        if Model.way == "not-finite":
            nn.functional.binary_cross_entropy(model(ids).sqrt() * float("nan"), torch.ones(4, 10))
        if Model.way == "loss":
            raise ArithmeticError("the loss is not to my liking")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}", flush=True)
        if step + 1 == args.steps:
            return


main()
