"""The same samples through loaders of four kinds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

ROWS, N_WORDS, N_IDS, PAD, N_CLASSES = 16, 12, 60, 0, 10
Batch = dict[str, Tensor]
Epoch = Callable[[int], Iterator[Batch]]
"""Takes the number of the pass, gives its batches."""


@functools.lru_cache(maxsize=8)
def samples(n: int, seed: int) -> Batch:
    """Pixels of 0.45 and 0.22 that are normalised, token ids with padding, their mask, labels of unequal classes."""
    torch.manual_seed(seed)
    lengths = torch.randint(5, N_WORDS + 1, (n,))
    ids = torch.randint(1, N_IDS, (n, N_WORDS))
    mask = (torch.arange(N_WORDS) < lengths[:, None]).long()
    label = torch.multinomial(torch.arange(1.0, N_CLASSES + 1), n, replacement=True)
    return {"x": torch.randn(n, 3, 8), "ids": ids * mask, "mask": mask, "label": label}


class _Map(Dataset[Any]):
    def __init__(self, data: Batch) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data["label"])

    def __getitem__(self, index: int) -> Batch:
        return {name: values[index] for name, values in self.data.items()}


class _Stream(IterableDataset[Any]):
    """Each worker reads its share, or all of it."""

    def __init__(self, data: Batch, is_shared: bool) -> None:
        self.data, self.is_shared = data, is_shared

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker is not None and self.is_shared else (0, 1)
        for index in range(first, len(self.data["label"]), stride):
            yield {name: values[index] for name, values in self.data.items()}


def shuffled(data: Batch) -> Epoch:
    """A DataLoader with two workers."""

    def epoch(number: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(number)
        return iter(DataLoader(_Map(data), ROWS, shuffle=True, generator=generator, num_workers=2))

    return epoch


def in_order(data: Batch) -> Epoch:
    """A DataLoader that does not shuffle."""
    return lambda _: iter(DataLoader(_Map(data), ROWS))


def stream(data: Batch, *, is_shared: bool = True) -> Epoch:
    """An IterableDataset with two workers."""
    return lambda _: iter(DataLoader(_Stream(data, is_shared), ROWS, num_workers=2))


def hugging_face(data: Batch) -> Epoch:
    """A data set of `datasets`, mapped and shuffled in each pass."""
    import datasets

    datasets.disable_progress_bars()
    raw = datasets.Dataset.from_dict({name: values.tolist() for name, values in data.items()})
    mapped: Any = raw.map(lambda row: {"x": row["x"], "ids": row["ids"]}).with_format("torch")
    return lambda number: iter(DataLoader(mapped.shuffle(seed=number), ROWS))


def in_memory(data: Batch) -> Epoch:
    """Slices of a permutation."""

    def epoch(number: int) -> Iterator[Batch]:
        order = torch.randperm(len(data["label"]), generator=torch.Generator().manual_seed(number))
        return ({name: values[rows] for name, values in data.items()} for rows in order.split(ROWS))

    return epoch


LOADERS: dict[str, Callable[[Batch], Epoch]] = {
    "DataLoader, 2 workers": shuffled,
    "IterableDataset, 2 workers": stream,
    "datasets, mapped and shuffled": hugging_face,
    "in memory": in_memory,
}
