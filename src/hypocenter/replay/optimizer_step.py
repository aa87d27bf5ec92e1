"""A parameter that an update made non-finite: which coordinates, and what the optimizer divided there."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from hypocenter.diagnose.evidence import Evidence, Rerun
from hypocenter.nouns import Remedy
from hypocenter.optimizers.moments import AdamOptions
from hypocenter.optimizers.rules.adam import Adam
from hypocenter.replay.adjudicate import chips, tensor_facts
from hypocenter.summary.reducers.torch_float64 import in_float64

SAFE_EPS = 1e-4  # representable in float16 (smallest normal 6.1e-5), the usual advice for half-precision Adam


def explain(base: Evidence, optimizer: torch.optim.Optimizer, parameter: torch.Tensor, name: str) -> Evidence:
    """Return the evidence for trigger nonfinite-param, from the optimizer's state as the update left it.

    For the Adam family the update is recomputed at the bad coordinates in float64, and in the state's own format with a
    representable eps.
    """
    values = _here(parameter)
    bad = ~torch.isfinite(values)
    group = next((g for g in optimizer.param_groups if any(p is parameter for p in g["params"])), {})
    state: dict[str, Any] = dict(optimizer.state.get(parameter, {}))
    facts: dict[str, float | str | list[int]] = {"class": type(optimizer).__name__, "n_bad": float(bad.sum())}
    for key in ("lr", "eps", "weight_decay", "momentum"):
        if isinstance(group.get(key), (int, float)):
            facts[key] = float(group[key])
    float64, remedies = Rerun(why_not="not an optimizer whose update is known"), ()
    variance, mean = state.get("exp_avg_sq"), state.get("exp_avg")
    if isinstance(variance, torch.Tensor) and isinstance(mean, torch.Tensor) and "eps" in facts:
        eps = float(group["eps"])
        v, m = _here(variance)[bad], _here(mean)[bad]
        facts["state_dtype"] = str(variance.dtype).removeprefix("torch.")
        facts["eps_in_dtype"] = float(torch.tensor(eps, dtype=variance.dtype, device="cpu"))
        facts["n_v_zero"] = float((v == 0).sum())
        facts["v_at_bad"] = str([float(x) for x in v[:4]])
        exact = _uncorrected(in_float64(m), in_float64(v), eps)
        finite = torch.isfinite(exact)
        float64 = Rerun(
            ran=True,
            finite=bool(finite.all()),
            absmax=float(exact[finite].abs().max()) if bool(finite.any()) else 0.0,
            n_nonfinite=int((~finite).sum()),
        )
        cured = bool(torch.isfinite(_uncorrected(m, v, SAFE_EPS)).all())
        remedies = (
            Remedy(
                action="eps",
                targets=(name,),
                verified=cured,
                text=f"{type(optimizer).__name__}(eps={SAFE_EPS:g}), or keep the optimizer state in float32",
            ),
        )
    where = tuple(tuple(int(i) for i in row) for row in bad.nonzero()[:16].tolist())
    return _with(base, values, name, where, facts, float64, remedies)


def _uncorrected(mean: torch.Tensor, square: torch.Tensor, eps: float) -> torch.Tensor:
    """Return Adam's direction. Its corrections for the bias are left out: they change no zero."""
    options = AdamOptions(eps=eps, bias_correction=False)
    return Adam.direction(mean, {"exp_avg": mean, "exp_avg_sq": square, "step": 1}, options)


def _here(tensor: torch.Tensor) -> torch.Tensor:
    """Return what is on this rank of a DTensor: asking for the rest would be a collective."""
    return getattr(tensor, "_local_tensor", tensor).detach()


def _with(
    base: Evidence,
    values: torch.Tensor,
    name: str,
    where: tuple[tuple[int, ...], ...],
    facts: dict[str, float | str | list[int]],
    float64: Rerun,
    remedies: tuple[Remedy, ...],
) -> Evidence:

    return replace(
        base,
        replayed=float64.ran,
        reproduced=float64.ran,
        bad_params=(name,) if not base.bad_params else base.bad_params,
        leaf=tensor_facts(values, name, origin="optimizer update"),
        chips=chips(values),
        indices=where,
        index_shape=tuple(values.shape),
        limit=float(torch.finfo(values.dtype).max),
        float64=float64,
        optimizer={k: v for k, v in facts.items() if not (isinstance(v, float) and not math.isfinite(v))},
        remedies=remedies,
    )
