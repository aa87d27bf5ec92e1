"""`save_batches`: the batches of the first steps on disk, with the tokens that the loss asks for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import hypocenter

VOCABULARY, LENGTH = 24, 10


class Reader(nn.Module):
    """The smallest language model; how it gets its logits is up to `tied`."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.head = None if tied else nn.Linear(8, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(ids)
        return F.linear(hidden, self.embedding.weight) if self.head is None else self.head(hidden)


def train(out: Path, *, ahead: int, tied: bool = False, n_saved: int = 1, dtype: torch.dtype | None = None) -> None:
    """Two steps of two micro-batches; the loss at t asks for the token at t + ahead, and for none of the token 0."""
    torch.manual_seed(0)
    model = Reader(tied=tied)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    with hypocenter.watch(model, optimizer, out=out, save_batches=n_saved):
        for _ in range(2):
            for _ in range(2):
                ids = torch.randint(0, VOCABULARY, (3, LENGTH), generator=generator)
                labels = ids[:, ahead:].clone()
                labels[labels == 0] = -100
                with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                    logits = model(ids)[:, : LENGTH - ahead]
                F.cross_entropy(logits.float().reshape(-1, VOCABULARY), labels.reshape(-1)).backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("ahead", [1, 2])
def test_targets_are_what_the_loss_asks_for(tmp_path, ahead, dtype, tied) -> None:
    train(tmp_path / "run", ahead=ahead, dtype=dtype, tied=tied)

    files = sorted((tmp_path / "run").glob("rank-00000/batches/*/*"))
    assert [f"{path.parent.name}/{path.name}" for path in files] == [
        "step-000000/mb-0.safetensors", "step-000000/mb-1.safetensors",
    ]  # fmt: skip
    for path in files:
        kept = load_file(path)
        expected = torch.full((3, LENGTH), -1)
        expected[:, :-ahead] = kept["model|in[0]"][:, ahead:]
        expected[expected == 0] = -1
        assert torch.equal(kept["target"], expected)
        assert kept["loss|[0]"].numel() == 3 * (LENGTH - ahead)


def test_the_hook_is_gone_afterwards_and_training_is_the_same_to_the_bit(tmp_path) -> None:
    n_hooks = len(nn.modules.module._global_forward_hooks)
    weights = []
    for n_saved in (0, 1, 2):
        torch.manual_seed(0)
        model = Reader()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        with hypocenter.watch(model, optimizer, out=tmp_path / str(n_saved), save_batches=n_saved):
            for _ in range(3):
                ids = torch.randint(0, VOCABULARY, (3, LENGTH))
                F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
                optimizer.step()
                optimizer.zero_grad()
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))

    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])
    assert len(nn.modules.module._global_forward_hooks) == n_hooks
    assert not (tmp_path / "0" / "rank-00000" / "batches").exists()
    assert len(list((tmp_path / "2").glob("rank-00000/batches/*/*"))) == 2
