"""A training of a few steps with everything that a planted difference may change, recorded for `hypocenter diff`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from networks import VOCABULARY, build
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hypocenter

N_STEPS, N_ROWS, N_TOKENS = 3, 4, 32
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Batch = dict[str, torch.Tensor]


@dataclass(kw_only=True)
class Setup:
    """One program. Edits change it before it is trained."""

    network: str
    dtype: torch.dtype
    model: nn.Module
    batches: list[list[Batch]]  # of each step its micro-batches
    optimizer: dict[str, Any] = field(default_factory=lambda: {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8})
    decay: dict[str, float] = field(default_factory=lambda: {"matrices": 0.1, "others": 0.0})
    clip: float = 1.0
    shift: int = 1  # the label of a token is the one that many places on
    divisor: float | None = None  # of each micro-batch's loss; how many there are when not given
    logits: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None
    n_threads: int = 1
    is_norm_flat: bool = False
    n_steps: int = N_STEPS
    restore: ExitStack = field(default_factory=ExitStack)  # undoes what an edit did outside of the model

    def train(self, out: Path, *, calibrate: str = "never") -> None:
        """Its steps, recorded at level modules; of several ranks each takes its share of the rows."""
        if dist.is_initialized():
            self.model = DistributedDataParallel(self.model)
            rank, size = dist.get_rank(), dist.get_world_size()
            self.batches = [[{k: v.chunk(size)[rank] for k, v in one.items()} for one in step] for step in self.batches]
        optimizer = torch.optim.AdamW(list(self._groups()), **self.optimizer)
        options = {"level": "modules", "sketch": True, "param_schedule": "every=1", "replay": False, "audit": "never"}
        torch.set_num_threads(self.n_threads)
        with self.restore, hypocenter.watch(self.model, optimizer, out=out, calibrate=calibrate, **options):
            for microbatches in self.batches[: self.n_steps]:
                for batch in microbatches:
                    loss = self._loss(batch)
                    (loss / (self.divisor or len(microbatches))).backward()
                self._clip()
                optimizer.step()
                optimizer.zero_grad()
        torch.set_num_threads(1)

    def _clip(self) -> None:
        if not self.is_norm_flat:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            return
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = torch.cat([grad.flatten().float() for grad in grads]).pow(2).sum().sqrt()
        for grad in grads:
            grad.mul_((self.clip / (norm + 1e-6)).clamp(max=1.0))

    def _groups(self) -> Iterator[dict[str, Any]]:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        yield {"params": [p for p in parameters if p.ndim > 1], "weight_decay": self.decay["matrices"]}
        others = [p for p in parameters if p.ndim <= 1]
        if others:
            yield {"params": others, "weight_decay": self.decay["others"]}

    def _loss(self, batch: Batch) -> torch.Tensor:
        given = {key: value for key, value in batch.items() if key != "tokens"}
        logits = self.logits(self.model(**given).logits).float()
        target = batch["tokens"][:, self.shift : self.shift + logits.shape[1] - 1]
        logits = logits[:, : target.shape[1]].reshape(-1, VOCABULARY)
        if self.loss is not None:
            return self.loss(logits, target.reshape(-1))
        return F.cross_entropy(logits, target.reshape(-1), ignore_index=0)


def setup(network: str, dtype: str, n_microbatches: int = 1) -> Setup:
    """The good program. Some rows end in padding (token 0), so that micro-batches have different numbers of labels."""
    model = build(network, DTYPES[dtype])
    generator = torch.Generator().manual_seed(2)
    batches = [list(_microbatches(network, n_microbatches, generator)) for _ in range(N_STEPS)]
    return Setup(network=network, dtype=DTYPES[dtype], model=model, batches=batches)


def _microbatches(network: str, n: int, generator: torch.Generator) -> Iterator[Batch]:
    tokens = torch.randint(1, VOCABULARY, (N_ROWS, N_TOKENS + 2), generator=generator)
    lengths = torch.tensor([N_TOKENS + 2, 27, N_TOKENS + 2, 19])
    tokens = tokens * (torch.arange(N_TOKENS + 2)[None, :] < lengths[:, None])
    source = torch.randint(1, VOCABULARY, (N_ROWS, N_TOKENS), generator=generator)
    for rows in torch.arange(N_ROWS).chunk(n):
        inputs = tokens[rows, :N_TOKENS]
        if network == "t5":
            visible = (torch.arange(N_TOKENS)[None, :] < torch.tensor([32, 30, 25, 32])[rows][:, None]).long()
            yield {"input_ids": source[rows], "attention_mask": visible, "decoder_input_ids": inputs,
                   "tokens": tokens[rows]}  # fmt: skip
        else:
            yield {"input_ids": inputs, "attention_mask": (inputs != 0).long(), "tokens": tokens[rows]}
