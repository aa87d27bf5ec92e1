"""Data sets and collate functions that keep to the laws, or break one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, default_collate

N, WIDTH = 24, 20


def images() -> Tensor:
    return torch.rand(N, WIDTH, generator=torch.Generator().manual_seed(1)) + 0.5


class Base(Dataset[Any]):
    def __init__(self) -> None:
        self.images, self.labels = images(), torch.arange(N) % 3

    def __len__(self) -> int:
        return N


# what changes when it is read


class CutOut(Base):
    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        image = self.images[i]
        at = int(torch.randint(WIDTH - 5, ()))
        image[at : at + 5] = 0.0
        return image + 0.05 * torch.randn(WIDTH), self.labels[i]


class CutOutOfNumPy(Base):
    def __init__(self) -> None:
        super().__init__()
        self.pictures = [each.numpy() for each in images()]

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        image = self.pictures[i]
        at = random.randrange(WIDTH - 5)
        if random.random() < 0.7:
            image[at : at + 5] = 0.0
        return torch.tensor(image), self.labels[i]


class CutOutOfACache(Base):
    def __init__(self) -> None:
        self.cache: dict[int, Any] = {}

    def __getitem__(self, i: int) -> dict[str, Any]:
        if i not in self.cache:
            self.cache[i] = {"image": images()[i].numpy()}
        image = self.cache[i]["image"]
        at = np.random.randint(WIDTH - 5)
        image[at : at + 5] = 0.0
        return {"image": image.copy(), "label": i % 3}


class ScaledInPlace(Base):
    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        image = self.images[i]
        image -= 0.5
        image /= 0.25
        return image, self.labels[i]


HIDDEN = images().numpy()


class CutOutOfAGlobal(Base):
    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        image = HIDDEN[i]
        at = np.random.randint(WIDTH - 5)
        image[at : at + 5] = 0.0
        return torch.tensor(image), i % 3

    def __init__(self) -> None: ...


# whose items lie in one memory


class OneArray(Base):
    def __init__(self) -> None:
        super().__init__()
        self.buffer = np.zeros(WIDTH, dtype=np.float32)

    def __getitem__(self, i: int) -> tuple[Any, Tensor]:
        self.buffer[:] = self.images[i].numpy()
        return torch.from_numpy(self.buffer), self.labels[i]


class OneTensor(Base):
    def __init__(self) -> None:
        super().__init__()
        self.buffer = torch.zeros(WIDTH)

    def __getitem__(self, i: int) -> dict[str, Any]:
        torch.add(self.images[i], 1.0, out=self.buffer)
        return {"x": self.buffer, "y": self.labels[i]}


class OneTensorOfTwo(OneTensor):
    def __getitem__(self, i: int) -> Any:
        held = super().__getitem__(i)
        return held["x"], held["y"]


class OneDictionary(Base):
    def __init__(self) -> None:
        super().__init__()
        self.item: dict[str, Any] = {}

    def __getitem__(self, i: int) -> dict[str, Any]:
        self.item["x"], self.item["y"] = self.images[i], self.labels[i]
        return self.item


# that keep to the laws


class Plain(Base):
    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.images[i], self.labels[i]


class DrawsOfAll(Base):
    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        image = self.images[i].clone()
        image[np.random.randint(WIDTH)] = random.random()
        return image + torch.randn(WIDTH), self.labels[i]


class OwnGenerator(Base):
    def __init__(self) -> None:
        super().__init__()
        self.generator, self.draws = torch.Generator().manual_seed(3), np.random.default_rng(4)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(WIDTH, generator=self.generator) + torch.tensor(self.draws.normal())
        return self.images[i] + noise, self.labels[i]


class KeepsWhatItMade(Base):
    """Of its own generator, where one may look at it later."""

    def __init__(self) -> None:
        super().__init__()
        self.draws, self.shown = np.random.default_rng(4), np.zeros((N, WIDTH), dtype=np.float32)
        self.last = [torch.zeros(WIDTH)] * N

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        self.shown[i] = self.images[i].numpy() + self.draws.normal(size=WIDTH)
        self.last[i] = torch.tensor(self.shown[i])
        return self.last[i], self.labels[i]


class Lazy(Base):
    def __init__(self) -> None:
        self.cache: dict[int, Tensor] = {}
        self.held, self.is_held = torch.zeros(N, WIDTH), [False] * N
        self.n = 0

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, int]:
        self.n += 1
        if i not in self.cache:
            self.cache[i] = images()[i]
        if not self.is_held[i]:
            self.held[i], self.is_held[i] = images()[i], True
        return self.cache[i] + 0.1 * torch.randn(WIDTH), self.held[i], i % 3


class ScaledOnce(Base):
    def __init__(self) -> None:
        super().__init__()
        self.is_scaled = [False] * N

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        if not self.is_scaled[i]:
            self.images[i] -= 0.5
            self.is_scaled[i] = True
        return self.images[i], self.labels[i]


class MixedWithTheLast(Base):
    def __init__(self) -> None:
        super().__init__()
        self.last: Tensor | None = None

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        image = self.images[i] * (1 + 0.1 * torch.rand(()))
        mixed = image if self.last is None else 0.5 * image + 0.5 * self.last
        self.last = image
        return mixed, self.labels[i]


class OneOfFew(Base):
    """Items that are equal are one object."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds = [images()[kind] for kind in range(3)]

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.kinds[i % 3], self.labels[i]


class Many(Base):
    """Reads all items of a batch at once."""

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.images[i], self.labels[i]

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, Tensor]]:
        held = self.images[indices]
        return [(held[at], self.labels[i]) for at, i in enumerate(indices)]


class OfAFile(Base):
    """Seeks in one file."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(images().numpy().tobytes())
        self.file = path.open("rb", buffering=0)
        self.n = 0

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.n += 1
        self.file.seek(4 * WIDTH * i)
        return torch.frombuffer(bytearray(self.file.read(4 * WIDTH)), dtype=torch.float32), i % 3


# sequences


class Words(Base):
    def __init__(self, *, is_sorted: bool = False) -> None:
        g = torch.Generator().manual_seed(5)
        sizes = [int(torch.randint(2, 12, (), generator=g)) for _ in range(N)]
        sizes = sorted(sizes, reverse=True) if is_sorted else sizes
        self.tokens = [torch.randint(1, 30, (size,), generator=g) for size in sizes]

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return self.tokens[i], i % 4


Collate = Callable[[Sequence[Any]], Any]


def padded(items: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
    tokens = pad_sequence([each for each, _ in items], batch_first=True)
    return tokens, torch.tensor([len(each) for each, _ in items]), torch.tensor([label for _, label in items])


def sorted_apart(items: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
    tokens, lengths, labels = padded(items)
    lengths, order = lengths.sort(descending=True)
    return tokens[order], lengths, labels


def sorted_apart_by_name(items: Sequence[Any]) -> dict[str, Any]:
    tokens = sorted((each for each, _ in items), key=len, reverse=True)
    return {"tokens": pad_sequence(tokens), "labels": [label for _, label in items]}  # the second dimension counts


def sorted_together(items: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
    return padded(sorted(items, key=lambda item: -len(item[0])))


def sorted_and_said(items: Sequence[Any]) -> dict[str, Any]:
    tokens, lengths, labels = padded(items)
    lengths, order = lengths.sort(descending=True)
    return {"tokens": tokens, "lengths": lengths, "order": order, "labels": labels}


def sorted_beside(items: Sequence[Any]) -> dict[str, Any]:
    tokens, lengths, labels = padded(items)
    return {"tokens": tokens, "lengths": lengths, "sorted": lengths.sort().values, "labels": labels}


def masked(items: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
    tokens, _, labels = padded(items)
    is_masked = torch.rand(tokens.shape) < 0.2
    return torch.where(is_masked, 31, tokens), torch.where(is_masked, tokens, -100), labels


def masked_inputs(items: Sequence[Any]) -> tuple[Tensor, Tensor]:
    tokens, _, labels = padded(items)
    return torch.where(torch.rand(tokens.shape) < 0.2, 31, tokens), labels


def shuffled_negatives(items: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
    tokens, _, labels = padded(items)
    return tokens, tokens[torch.randperm(len(tokens))], labels


def shifted_negatives(items: Sequence[Any]) -> tuple[Tensor, Tensor]:
    tokens, _, labels = padded(items)
    return tokens, labels.roll(1)


def mixed(items: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor]:
    x, y = default_collate(list(items))
    order = torch.randperm(len(x))
    return 0.7 * x + 0.3 * x[order], y, y[order]


def packed(items: Sequence[Any]) -> dict[str, Any]:
    return {
        "tokens": torch.cat([each for each, _ in items]),
        "at": torch.cat([torch.arange(len(each)) for each, _ in items]),
        "labels": torch.tensor([label for _, label in items]),
    }


def all_alike(items: Sequence[Any]) -> tuple[Tensor, Tensor]:
    return torch.ones(len(items), 4), torch.tensor([label for _, label in items])


def in_pairs(items: Sequence[Any]) -> tuple[Tensor, Tensor]:
    if len(items) % 2:
        raise ValueError("give me an even number")
    tokens, _, labels = padded(items)
    return tokens, labels
