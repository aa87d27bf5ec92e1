"""The first promise of the project: a real T5 or mT5 overflows in float16 and is diagnosed, with a verified cure."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "gallery"))

import casebook

EXAMPLE = Path(__file__).parents[2] / "examples" / "t5_overflow.py"
LAYER = "encoder.block.0.layer.1.DenseReluDense"
STEP = 5
SAMPLE = (3 * STEP + 2) % 8  # where the example puts its rare word
COMMON = {
    "step": STEP,
    "samples": [SAMPLE],
    "phase": ["forward"],
    "cause": ["format-overflow"],
    "confidence": ["proven"],
    "limit": 65504.0,
    "remedy": ["fp32-island"],
    "verified": True,
}
WO = {"site": [f"{LAYER}.wo"], "op": ["aten.mm.default", "aten.linear.default"], "line_text": "self.wo("}
PRODUCT = {"site": [LAYER], "op": ["aten.mul.Tensor"], "line_text": "hidden_gelu * hidden_linear"}

VARIANTS = [(model, precision) for model in ("t5", "mt5") for precision in ("autocast", "half")]


def overflow(model: str, precision: str, *more: str, microbatch: int = 0, place: dict | None = None) -> casebook.Case:
    answer = {
        **COMMON,
        **(place or WO),
        "microbatch": microbatch,
        "line_of": f"modeling_{model}.py",
        "args": ["--model", model, "--precision", precision, *more],
    }
    return casebook.Case(id=f"{model}-{precision}", script=EXAMPLE, answer=answer)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "precision"), VARIANTS)
def test_output_projection(model: str, precision: str, tmp_path: Path) -> None:
    """`wo` overflows: a Linear, so that module hooks could name it too."""
    case = overflow(model, precision)

    outcome = casebook.run(
        case, tmp_path / "run", is_started=(model, precision) == VARIANTS[-1]
    )  # as a user does, by night

    assert casebook.mismatches(case, outcome) == [], (outcome.first, outcome.stderr)


@pytest.mark.night
@pytest.mark.parametrize(("model", "precision"), VARIANTS)
def test_product_inside_a_module(model: str, precision: str, tmp_path: Path) -> None:
    """`gelu(wi_0) * wi_1` overflows: no module of its own, module hooks name the next one."""
    case = overflow(model, precision, "--overflow", "product", place=PRODUCT)

    outcome = casebook.run(case, tmp_path / "run")

    assert casebook.mismatches(case, outcome) == [], (outcome.first, outcome.stderr)


@pytest.mark.night
@pytest.mark.parametrize("precision", ["autocast", "half"])
def test_last_of_three_microbatches(precision: str, tmp_path: Path) -> None:
    case = overflow("t5", precision, "--accumulate", "3", microbatch=2)

    outcome = casebook.run(case, tmp_path / "run")

    assert casebook.mismatches(case, outcome) == [], (outcome.first, outcome.stderr)


@pytest.mark.night
@pytest.mark.parametrize(("model", "precision"), VARIANTS)
def test_without_growth_nothing_is_said(model: str, precision: str, tmp_path: Path) -> None:
    case = overflow(model, precision, "--healthy")

    outcome = casebook.run(case, tmp_path / "run")

    assert outcome.exit_code == 0, outcome.stderr
    assert outcome.status == "healthy"
    assert outcome.alarms == []
