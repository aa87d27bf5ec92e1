"""Ten planted differences and none, in the MindSpore port of a torch GPT: plans, and what must be found.

What must be found follows from what is planted and from the order of the stages, never from what was found. Sites are
in the baseline's names.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from two_frameworks import MINDSPORE, PROGRAMS, PYTHON, TORCH, Pair

from hypocenter.align.alignment import Alignment, StageResult
from hypocenter.align.plan import Plan, plan_of

_LAST = "transformer.h.1"  # where differences are planted


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """One plan."""

    name: str
    flags: str = ""  # of the candidate
    stage: int | None = None  # where it must stop; None: nowhere
    sites: tuple[str, ...] = ()  # one of which must be blamed
    cause: str | None = None
    words: tuple[str, ...] = ()  # all of which must be said


CASES = (
    Planted(name="nothing"),
    Planted(name="eps of a norm is MindSpore's 1e-7", flags="--eps 1e-7", stage=2, sites=(f"{_LAST}.ln_2",),
            cause="config-mismatch", words=("eps", "1e-07")),
    Planted(name="GELU by tanh, MindSpore's default", flags="--gelu tanh", stage=2, sites=(f"{_LAST}.mlp.gelu",),
            cause="config-mismatch", words=("tanh",)),
    Planted(name="one cell computes in float16", flags="--fp16 backbone.blocks.1.attention.projection", stage=2,
            sites=(f"{_LAST}.attn.c_proj",), cause="precision-mismatch", words=("float16",)),
    Planted(name="a linear has no bias", flags="--no-bias", stage=2, sites=(f"{_LAST}.mlp.c_proj",),
            cause="implementation-mismatch", words=("no bias",)),
    Planted(name="every parameter decays", flags="--decay all", stage=4, cause="config-mismatch",
            sites=("transformer.h.0.ln_1.weight",), words=("weight_decay",)),
    Planted(name="tokens are looked up in float16", flags="--embedding float16", stage=2,
            sites=("transformer.wte",), cause="precision-mismatch", words=("float16",)),
    Planted(name="beta2 0.999 for 0.95", flags="--beta2 0.999", stage=4, sites=("transformer.wte.weight",),
            cause="config-mismatch", words=("betas", "0.999")),
    Planted(name="labels are not shifted", flags="--label-shift 0", stage=1, sites=("batch.in[1]",),
            cause="data-mismatch", words=("in[1]", "its own token")),
    Planted(name="a square weight is loaded as its transpose", flags="--transposed", stage=1,
            sites=(f"{_LAST}.attn.c_proj.weight",), cause="init-mismatch", words=("transpose",)),
    Planted(name="dropout 0.1 left on", flags="--dropout 0.1", stage=1, cause="config-mismatch",
            sites=("transformer.drop", "backbone.embedding.dropout"), words=("dropout",)),
)  # fmt: skip


def plan(case: Planted, pair: Pair, folder: Path, *, frozen_steps: int = 20, long_steps: int = 50) -> Plan:
    """The plan of a case, kept in `folder`. The learning rate is the programs' own."""
    given = shlex.join(["--tokens", str(pair.tokens), "--weights"])
    name = "".join(letter if letter.isalnum() else "-" for letter in case.name)
    return plan_of(
        {
            "baseline": {
                "command": f"{sys.executable} {TORCH} {given} {pair.weights}",
                "config": str(PROGRAMS / "configs" / "gpt_torch.sh"),
            },
            "candidate": {
                "command": f"{PYTHON} {MINDSPORE} {given} {pair.converted} {case.flags}",
                "config": str(PROGRAMS / "configs" / "gpt_mindspore.yaml"),
            },
            "stages": {"frozen_steps": frozen_steps, "long_steps": long_steps},
        },
        folder / f"{name}.toml",
    )


def failed_stage(found: Alignment) -> StageResult | None:
    """The stage that stopped it."""
    return next((one for one in found.stages if one.verdict == "failed"), None)


def is_site_right(case: Planted, found: Alignment) -> bool:
    """Whether it stops where it must, and blames what it must; or does not stop where nothing is planted."""
    failed = failed_stage(found)
    if case.stage is None or failed is None:
        return failed is None and case.stage is None and found.status == "aligned"
    return failed.stage == case.stage and (failed.site or "") in case.sites


def is_cause_right(case: Planted, found: Alignment) -> bool:
    """Whether the cause is the planted one, and the reasons say it."""
    failed = failed_stage(found)
    if failed is None:
        return case.cause is None and found.status == "aligned"
    told = " ".join([failed.sentence, *failed.why])
    return failed.cause == case.cause and all(word in told for word in case.words)
