"""What is to be the same on some ranks and another on others: random states, the batch, learning rates.

On the steps of config.replicas and the first few: digests of the random states before the step's first forward and of
the tensors that the model was called with there (the tape has kept both); learning rates of further parameter groups.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hypocenter.detect.replica_rows import BATCH_PORT, BATCH_PREFIX, RNG_PORT, RNG_PREFIX
from hypocenter.nouns import Reading, Summary
from hypocenter.schedule import parse
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.sentinel import scalar_reading
from hypocenter.tap.digest import digests, to_host
from hypocenter.tap.state import RngState
from hypocenter.tap.tape import PLACEHOLDERS, Event, version_of
from hypocenter.tap.tree import tensors

FIRST = 3  # steps from the start that are looked at whatever the schedule: ranks that share data do so from there
WHOLE = 1 << 20  # elements of an input up to which all are read; of a larger one of floats this many at a stride
AT_MOST = 16  # tensors of one batch
_MEGATRON = "megatron.core.tensor_parallel.random"


class Streams(Observer):
    """Writes the digests. Off in a process that is alone."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_due = parse(context.config.replicas)
        self._done_step = -1  # of this step the first forward has been looked at

    def before_update(self, update: Update) -> None:
        """What the first forward of the step started from; learning rates."""
        if self.context.config.replicas == "never" or self.context.rank()[1] < 2:
            return
        if not (update.step < FIRST or self._is_due(update.step)):
            return
        self._rates(update)
        event = next((e for e in self.context.tape.events if e.module is not None), None)
        if update.step == self._done_step or event is None:
            return
        self._done_step = update.step
        states = dict(_random_states(event.rng)) if event.rng is not None else {}
        batch = list(_batch(event))
        found = to_host(digests([*states.values(), *(t for _, t in batch)]))
        for name, digest in zip(states, found, strict=False):
            self._add(RNG_PREFIX + name, RNG_PORT, update.step, digest)
        for (name, tensor), digest in zip(batch, found[len(states) :], strict=True):
            self._add(BATCH_PREFIX + name, BATCH_PORT, update.step, digest, tensor)

    def _rates(self, update: Update) -> None:
        groups: Any = getattr(update.optimizer, "param_groups", ())
        for index, group in enumerate(groups):
            rate: Any = group.get("lr") if isinstance(group, Mapping) else None
            if index and isinstance(rate, (int, float)):
                order = self.context.clock.next_order()
                self.rows.append(scalar_reading(f"lr.group[{index}]", "optimizer", float(rate), update.step, order))

    def _add(self, site: str, port: str, step: int, digest: int | None, tensor: Tensor | None = None) -> None:
        if digest is None:
            return
        shape = tuple(tensor.shape) if tensor is not None else ()
        dtype = str(tensor.dtype).removeprefix("torch.") if tensor is not None else ""
        n = tensor.numel() if tensor is not None else 1
        order = self.context.clock.next_order()
        self.rows.append(
            Reading(step=step, microbatch=0, phase="data", site=site, port=port, order=order, dtype=dtype, shape=shape,
                    summary=Summary(n=n), digest=digest)
        )  # fmt: skip


def _random_states(rng: RngState) -> Iterator[tuple[str, Tensor]]:
    """Stream -> its state as a tensor on the host."""
    yield "cpu", rng.cpu
    if rng.device is not None and rng.device_type is not None:
        yield rng.device_type, rng.device
    _, words, gauss = rng.python
    yield "python", _numbers(words, gauss)
    if rng.numpy is not None:
        _, words, position, has_gauss, cached = rng.numpy
        yield "numpy", _numbers(words, (position, has_gauss, cached))
    yield from _megatron_states()


def _numbers(words: Any, rest: Any) -> Tensor:
    mixed = np.concatenate([np.asarray(words, dtype=np.int64), [hash(rest)]])  # of floats and ints: not salted
    return torch.from_numpy(mixed)


def _megatron_states() -> Iterator[tuple[str, Tensor]]:
    tracker: Any = getattr(sys.modules.get(_MEGATRON), "get_cuda_rng_tracker", None)
    states = tracker().get_states() if tracker is not None else {}
    for name, state in states.items():
        if isinstance(state, Tensor):
            yield f"megatron.{name}", state


def _batch(event: Event) -> Iterator[tuple[str, Tensor]]:
    """(argument, values) of what the outermost module was called with; not what was changed in place meanwhile."""
    versions = {id(e.tensor): e.version for e in event.externals}
    named = [(f"in[{i}]", arg) for i, arg in enumerate(event.args)] + list(event.kwargs.items())
    given = [(f"{name}{suffix}", t) for name, value in named for suffix, t in tensors(value)]
    for name, tensor in given[:AT_MOST]:
        is_input = PLACEHOLDERS.number(tensor) is None and not isinstance(tensor, torch.nn.Parameter)
        if not is_input or versions.get(id(tensor), version_of(tensor)) != version_of(tensor):
            continue
        values = _looked_at(tensor)
        if values is not None:
            yield name, values


def _looked_at(tensor: Tensor) -> Tensor | None:
    """A large tensor of floats at a stride; None for a shard (DTensor), which other ranks need not have."""
    if hasattr(tensor, "to_local") or tensor.layout != torch.strided:
        return None
    if tensor.numel() <= WHOLE or not tensor.is_floating_point():
        return tensor
    return tensor.reshape(-1)[:: -(-tensor.numel() // WHOLE)] if tensor.is_contiguous() else None
