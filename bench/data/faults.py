"""What is planted: each takes the batch of a step and those before it, and gives another batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from bench.data.loaders import PAD, ROWS, Batch

Fault = Callable[[Batch, Sequence[Batch]], Batch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A fault, and the rules that may name it."""

    codes: tuple[str, ...]
    plant: Fault
    needs_past: bool = False  # only told where samples have come before


def _rows(batch: Batch, order: torch.Tensor) -> Batch:
    return {name: values[order] for name, values in batch.items()}


def _mixed(batch: Batch, past: Sequence[Batch]) -> Batch:
    half = len(batch["label"]) // 2
    return {name: torch.cat([values[:half], past[-9][name][half:]]) for name, values in batch.items()}


def _outlier(batch: Batch, past: Sequence[Batch]) -> Batch:
    x = batch["x"].clone()
    x[5] *= 1000
    return {**batch, "x": x}


def _truncated(batch: Batch, past: Sequence[Batch]) -> Batch:
    keep = torch.arange(batch["ids"].shape[1]) < 2
    return {**batch, "ids": torch.where(keep, batch["ids"], PAD), "mask": batch["mask"] * keep}


_HALVES = torch.arange(ROWS) % (ROWS // 2)
FAULTS: dict[str, Kind] = {
    "the batch before again": Kind(codes=("HC411",), plant=lambda batch, past: past[-1]),
    "a batch of 20 steps before": Kind(codes=("HC411",), plant=lambda batch, past: past[-20]),
    "rows copied within the batch": Kind(codes=("HC411",), plant=lambda batch, past: _rows(batch, _HALVES)),
    "half of an earlier batch mixed in": Kind(codes=("HC411",), plant=_mixed),
    "field not scaled (bytes)": Kind(codes=("HC412",), plant=lambda b, past: {**b, "x": b["x"] * 255}),
    "normalised twice": Kind(codes=("HC412",), plant=lambda b, past: {**b, "x": (b["x"] - 0.45) / 0.22}),
    "field zeroed": Kind(codes=("HC412",), plant=lambda b, past: {**b, "x": torch.zeros_like(b["x"])}),
    "values rounded": Kind(codes=("HC412",), plant=lambda b, past: {**b, "x": (b["x"] * 8).round() / 8}),
    "one row 1000 times as large": Kind(codes=("HC412",), plant=_outlier),
    "labels shuffled against inputs": Kind(
        codes=("HC413",), plant=lambda b, past: {**b, "label": b["label"].roll(5)}, needs_past=True
    ),
    "one label": Kind(codes=("HC412",), plant=lambda b, past: {**b, "label": torch.full_like(b["label"], 3)}),
    "labels numbered from 1": Kind(
        codes=("HC412", "HC413"), plant=lambda b, past: {**b, "label": b["label"] + 1}, needs_past=True
    ),
    "words' labels one further": Kind(codes=("HC412",), plant=lambda b, past: {**b, "labels": b["labels"].roll(1, 1)}),
    "mask inverted": Kind(codes=("HC412", "HC413"), plant=lambda b, past: {**b, "mask": 1 - b["mask"]}),
    "truncated to padding": Kind(codes=("HC412",), plant=_truncated),
    "another vocabulary's ids": Kind(codes=("HC412",), plant=lambda b, past: {**b, "ids": b["ids"] + 40}),
}
