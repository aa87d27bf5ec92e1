"""Buffers that a call changes: copies of them, cut apart only when somebody asks, and which ones change at all."""

from __future__ import annotations

import torch
from torch import nn

from hypocenter.tap.roots import ChangingBuffers, SavedBuffers


def held(*tensors: torch.Tensor) -> list[tuple[nn.Module, str, torch.Tensor]]:
    return [(nn.Identity(), f"b{i}", tensor) for i, tensor in enumerate(tensors)]


def test_copies_are_what_the_buffers_were_whatever_their_formats_and_layouts():
    tensors = [
        torch.randn(3), torch.tensor(7), torch.randn(2, 4).t(), torch.randn(()), torch.zeros(0),
        torch.ones(2, dtype=torch.bool), torch.randn(5, dtype=torch.float64),
    ]  # fmt: skip
    before = [tensor.clone() for tensor in tensors]
    given = held(*tensors)

    saved = SavedBuffers(given)
    for tensor in tensors:
        tensor.fill_(1) if tensor.dtype == torch.bool else tensor.add_(1)

    assert len(saved) == len(tensors)
    for (module, key, copy), (owner, name, tensor), was in zip(saved, given, before, strict=True):
        assert (module, key, copy.dtype, copy.shape) == (owner, name, tensor.dtype, tensor.shape)
        assert torch.equal(copy, was)
        assert copy.data_ptr() != tensor.data_ptr() or not copy.numel()
    assert torch.equal(saved[1][2], before[1])
    assert [key for _, key, _ in saved[-2:]] == ["b5", "b6"]
    assert not SavedBuffers()


class Model(nn.Module):
    """Batch norm, a counter of its own, one buffer that is put in anew each time, and one that stays."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        for name in ("count", "last", "table"):
            self.register_buffer(name, torch.zeros(4))

    def forward(self, x):
        self.count += 1
        self.last = x[0].detach()
        return self.norm(x) + self.table


def test_from_the_second_call_on_only_what_changes_is_copied():
    model, buffers = Model(), ChangingBuffers()

    copied = []
    for _ in range(3):
        saved = buffers.before(model)
        was = {key: buffer.clone() for key, buffer in model.named_buffers()}
        model(torch.randn(8, 4))
        buffers.after()
        copied.append({key for _, key, _ in saved})
        names = {id(m): f"{name}." if name else "" for name, m in model.named_modules()}
        assert all(torch.equal(copy, was[names[id(m)] + key]) for m, key, copy in saved)

    changing = {"running_mean", "running_var", "num_batches_tracked", "count", "last"}
    assert copied == [{*changing, "table"}, changing, changing]


def test_what_a_part_changes_once_it_is_in_training_is_copied_before_its_first_call():
    model, buffers = Model().eval(), ChangingBuffers()
    for _ in range(2):
        buffers.before(model)
        model(torch.randn(8, 4))
        buffers.after()

    model.train()
    saved = {key: copy for _, key, copy in buffers.before(model)}
    model(torch.randn(8, 4))
    buffers.after()

    assert {"running_mean", "running_var", "num_batches_tracked", "count", "last"} <= saved.keys()
    assert torch.equal(saved["running_mean"], torch.zeros(4))
    assert "running_mean" in {key for _, key, _ in buffers.before(model)}
