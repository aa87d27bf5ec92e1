"""float16 gradients that became zero: suspected from norms, proven by replaying the step with a larger loss.

Multiplying the gradient that backward starts from by a power of two shifts all that follows from it without another
rounding. Elements that are nonzero then, and exactly zero without, are what float16 has lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from hypocenter.config import Config
from hypocenter.diagnose.evidence import Evidence, Rerun
from hypocenter.formats import FORMATS
from hypocenter.replay.engine import Replayer
from hypocenter.session.check import Check
from hypocenter.tap.names import NameMap
from hypocenter.tap.tape import Microbatch

SMALL_RMS = (
    2.0**-21
)  # of a scaled gradient: a fifth of a normal distribution's values is below 2^-23 then, and 5 % lost
MAX_PROBES = 3  # replays, two or more each, of healthy steps
PAUSES = (8, 64, 512)  # updates to wait after a probe that found nothing
LOOKS = 4  # updates at which it is asked whether the run computes in float16
MOST_ELEMENTS = 1 << 26  # of gradients that a probe holds: 256 MiB
CONVERGED = 1e-4  # of the first loss: what is left to learn may vanish
TARGET = 4096.0  # scaled gradient norm to aim at: 4 octaves below the end of float16
TRIES = 3  # each with a factor 2^-6 lower, when the larger loss overflows
SHARE_WITHOUT_SCALE, SHARE_WITH_SCALE = 0.1, 0.25  # of all elements: what must be lost before it is said
LEAST_ELEMENTS = 16  # of a parameter that counts as lost as a whole


class UnderflowProbe:
    """Looks at healthy steps; replays a few of them at most."""

    def __init__(self, config: Config, names: NameMap, replayer: Replayer) -> None:
        self._config, self._names, self._replayer = config, names, replayer
        self._n_probes = self._n_looks = self._wait = 0
        self._is_half = self._is_said = False
        self._known: frozenset[str] = frozenset()
        self._first_loss: float | None = None
        self._generation = -1  # of the names that these belong to
        self._sizes: dict[str, int] = {}
        self._small: dict[str, float] = {}  # norms below which a gradient is suspicious

    def look(
        self,
        check: Check,
        step: int,
        scale: float | None,
        microbatches: Sequence[Microbatch],
        *,
        rank: int,
        world_size: int,
    ) -> Evidence | None:
        """Return evidence when much of the gradient is lost, else None. Costs nothing in runs without float16."""
        if self._is_said or self._n_probes >= MAX_PROBES or not self._config.replay or not microbatches:
            return None
        self._n_looks += 1
        if not self._is_half and self._n_looks <= LOOKS:
            self._is_half = self._computes_in_half(microbatches[0])
        if not self._is_half or self._n_looks < self._wait:
            return None
        suspects = self._suspects(check, scale or 1.0)
        if not suspects or self._has_converged(check, scale or 1.0) or set(suspects) <= self._known:
            return None
        self._known |= frozenset(suspects)
        self._wait = self._n_looks + PAUSES[self._n_probes]
        self._n_probes += 1
        found = self._probe(suspects, check, scale or 1.0, microbatches[0])
        if found is None:
            return None
        lost, facts = found
        needed = SHARE_WITHOUT_SCALE if scale is None else SHARE_WITH_SCALE
        is_whole = scale is None and facts["n_dead"] >= max(1.0, needed * len(check.grad_norms))
        if facts["n_lost"] < needed * facts["n_elements"] and not is_whole:
            return None
        self._is_said = True
        return Evidence(
            id=f"step-{step:06d}-grad-underflow",
            trigger="grad-underflow",
            step=step,
            microbatch=microbatches[0].number,
            rank=rank,
            world_size=world_size,
            loss_scale=scale,
            bad_params=lost,
            n_params=len(check.grad_norms),
            replayed=True,
            reproduced=True,
            limit=FORMATS["float16"].smallest_subnormal,
            float64=Rerun(why_not="the whole step was done again with a larger loss instead"),
            facts={**facts},
        )

    def _computes_in_half(self, microbatch: Microbatch) -> bool:
        try:
            return self._replayer.computes_in(microbatch, torch.float16)
        except Exception:  # the user's own code may run here: anything may come out of it
            return False

    def _suspects(self, check: Check, scale: float) -> list[str]:
        """Return parameters whose gradient is 0 or of a size that float16 can hardly hold, smallest first."""
        if self._generation != self._names.generation:
            self._generation = self._names.generation
            self._sizes = {name: p.numel() for name, p in self._names.parameters()}
            self._small = {name: SMALL_RMS * math.sqrt(n) for name, n in self._sizes.items()}
        small = self._small
        found = [(norm, name) for name, norm in check.grad_norms.items() if norm * scale < small.get(name, 0.0)]
        return [name for _, name in sorted(found)]

    def _has_converged(self, check: Check, scale: float) -> bool:
        if not check.losses:
            return True
        loss = abs(check.losses[0] / scale)
        if self._first_loss is None:
            self._first_loss = loss
        return loss < CONVERGED * self._first_loss

    def _probe(
        self, suspects: Sequence[str], check: Check, scale: float, microbatch: Microbatch
    ) -> tuple[tuple[str, ...], dict[str, float]] | None:
        """Replay a micro-batch; return (parameters that lost most, measurements), None when it cannot be told."""
        parameters = dict(self._names.parameters())
        wanted, n = [], 0
        for name in suspects:
            n += self._sizes.get(name, 0)
            if n <= MOST_ELEMENTS and name in parameters:
                wanted.append(name)
        largest = max(check.grad_norms.values()) * scale
        exponent = math.floor(math.log2(TARGET / largest)) if largest > 0 else 24
        half_root = any(v.dtype == torch.float16 for v in microbatch.values)
        exponent = min(exponent, 15 if half_root else 24)  # the seed itself must fit
        held = [parameters[name] for name in wanted]
        try:
            as_it_was = self._replayer.run(microbatch, held)
            for _ in range(TRIES):
                if exponent < 1:
                    return None
                lifted = self._replayer.run(microbatch, held, seed_scale=2.0**exponent)
                if lifted.finite:
                    return self._compared(wanted, as_it_was.grads, lifted.grads, exponent, scale)
                exponent -= 6
        except Exception:  # the user's own code runs here: anything may come out of it
            return None
        return None

    def _compared(
        self,
        names: Sequence[str],
        grads: Sequence[torch.Tensor | None],
        lifted: Sequence[torch.Tensor | None],
        exponent: int,
        scale: float,
    ) -> tuple[tuple[str, ...], dict[str, float]]:
        counts: list[tuple[int, str]] = []
        n_dead, top = 0, 0.0
        for name, grad, larger in zip(names, grads, lifted, strict=True):
            if grad is None or larger is None or grad.layout != torch.strided or larger.layout != torch.strided:
                continue
            lost = (grad == 0) & (larger != 0)
            n = int(lost.sum())
            if not n:
                continue
            counts.append((n, name))
            top = max(top, float(larger[lost].abs().max()) / 2.0**exponent / scale)
            n_dead += grad.numel() >= LEAST_ELEMENTS and not bool(grad.any()) and 2 * n >= grad.numel()
        counts.sort(reverse=True)
        return tuple(name for _, name in counts), {
            "n_lost": float(sum(n for n, _ in counts)),
            "n_elements": float(sum(self._sizes.values())),
            "n_dead": float(n_dead),
            "factor_log2": float(exponent),
            "largest_lost": top,
        }
