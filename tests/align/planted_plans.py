"""Thirteen planted differences and two right pairs: plans for one program whose flags plant them, what must be found.

What must be found follows from what is planted and from the order of the stages, never from what was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hypocenter.align.plan import Plan, plan_of

PROGRAM = Path(__file__).parent / "programs" / "planted_gpt.py"
_RANKS = "torchrun --standalone --nproc-per-node 2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """One plan."""

    name: str
    flags: str = ""  # of the candidate
    stage: int | None = None  # where it must stop; None: nowhere
    cause: str | None = None
    words: tuple[str, ...] = ()  # one of which must be in the sentence, a reason, or the site
    wide: tuple[str, str] = ("", "")  # flags of the baseline and the candidate on two ranks


CASES = (
    Planted(name="nothing (one process, then two ranks)", wide=("one", "")),
    Planted(name="nothing (attention written out: the same, rounded elsewhere)", flags="--attention written-out"),
    Planted(name="eps of one norm 1e-3 for 1e-5", flags="--eps 1e-3", stage=2, cause="config-mismatch",
            words=("blocks.1.norm2",)),
    Planted(name="batches in another order", flags="--order later-first", stage=1, cause="data-mismatch",
            words=("of step 1",)),
    Planted(name="learning rate decays sooner", flags="--decay-steps 120", stage=7, cause="config-mismatch",
            words=("learning rate",)),
    Planted(name="labels are not shifted", flags="--label-shift 0", stage=1, cause="data-mismatch",
            words=("its own token",)),
    Planted(name="dropout 0.1 left on", flags="--dropout 0.1", stage=1, cause="config-mismatch",
            words=("dropout",)),
    Planted(name="beta2 0.999 for 0.95", flags="--beta2 0.999", stage=4, cause="config-mismatch", words=("betas",)),
    Planted(name="losses of micro-batches are not divided", flags="--accumulate sum", stage=2,
            cause="implementation-mismatch", words=("number of micro-batches",)),
    Planted(name="loss in bfloat16", flags="--loss bfloat16", stage=2, cause="precision-mismatch",
            words=("bfloat16",)),
    Planted(name="one matrix starts as other numbers", flags="--layer-seed 5", stage=1, cause="init-mismatch",
            words=("blocks.1.up.weight",)),
    Planted(name="one gradient 2 % larger", flags="--gradient-factor 1.02", stage=3, cause="implementation-mismatch",
            words=("blocks.1.up.weight",)),
    Planted(name="all gradients twice as large", flags="--gradient-factor 2 --all-gradients-factor 2", stage=3,
            cause="implementation-mismatch", words=("2 times the baseline's",)),
    Planted(name="one batch is treated otherwise", flags="--odd-step 13", stage=5, cause="implementation-mismatch",
            words=("step 13",)),
    Planted(name="DDP: a mean of the ranks' means", stage=8, cause="implementation-mismatch",
            words=("mean of the ranks' own means",), wide=("ranks", "--mean per-rank")),
)  # fmt: skip


def plan(case: Planted, folder: Path, **stages: object) -> Plan:
    """The plan of a case, kept in `folder`."""
    config = [str(PROGRAM.parent / "configs" / "planted.json")]
    found: dict[str, object] = {
        "baseline": {"command": f"python {PROGRAM}", "config": config},
        "candidate": {"command": f"python {PROGRAM} {case.flags}", "config": config},
        "stages": {"frozen_steps": 20, "long_steps": 40, "lr": 1e-3} | stages,
    }
    if case.wide[0]:
        one = f"python {PROGRAM} --micro-batches 1"
        found["widening"] = [{
            "name": "two ranks", "baseline": one if case.wide[0] == "one" else f"{_RANKS} {PROGRAM}",
            "candidate": f"{_RANKS} {PROGRAM} {case.wide[1]}",
        }]  # fmt: skip
    name = "".join(letter if letter.isalnum() else "-" for letter in case.name)
    return plan_of(found, folder / f"{name}.toml")
