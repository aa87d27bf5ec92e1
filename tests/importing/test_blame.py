"""What `check` and `diff` say of dumps whose fault is known: the culprit, where the tool's own analysis misses it.

The tool's answers to such programs: `overflow_check` names `masked_fill` for `mask_log`, another module for `input`, no
parameter for `adam`; `compare` passes the first module that differs in both pairs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hypocenter.compare.engine import compare_runs
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import RecordedRun

sys.path.insert(0, str(Path(__file__).parent))
from dumps import MSPROBE, forward, imported, tensor, write  # isort: skip


def first_of(run: RecordedRun) -> Finding:
    found = diagnose(run)
    assert found.status == "findings"
    return found.findings[0]


@pytest.mark.parametrize(
    ("name", "step", "phase", "site", "op", "cause"),
    [
        ("overflow/cast", 0, "forward", "blocks.1.mlp", None, "format-overflow"),
        ("overflow/mask_log", 1, "forward", "", "Torch.log", "out-of-domain"),
        ("overflow/sqrt", 1, "backward", "", "Torch.sqrt", "sqrt-gradient-at-zero"),
        ("overflow/input", 1, "forward", "inp", "Functional.linear", "bad-input"),
        ("overflow/weight", 1, "param", "blocks.1.attn.proj.weight", None, "bad-parameter"),
        ("overflow/weight_L0", 1, "param", "blocks.1.attn.proj.weight", None, "bad-parameter"),
        ("overflow/adam", 0, "optimizer", "", "Tensor.addcdiv_", "division-by-zero"),
    ],
)  # fmt: skip
def test_the_first_bad_value_is_named_with_its_cause(
    name: str, step: int, phase: str, site: str, op: str | None, cause: str, tmp_path: Path
) -> None:
    first = first_of(imported(MSPROBE / name, tmp_path / "run"))

    assert (first.step, first.phase, first.site, first.op, first.cause) == (step, phase, site, op, cause)
    assert first.severity == "error"


def test_of_two_ranks_the_one_whose_loss_overflowed_is_named_and_the_rest_follows(tmp_path: Path) -> None:
    found = diagnose(imported(MSPROBE / "two_ranks_mix", tmp_path / "run"))

    (first,) = [f for f in found.findings if f.severity == "error"]
    assert (first.step, first.rank, first.op, first.cause) == (1, 1, "Tensor.__pow__", "format-overflow")
    assert first.source is not None
    assert first.source.line == 18
    assert any("rank 0 -> not finite too" in line for line in first.then)
    assert first.chips == ("+inf",)  # how many is not known


@pytest.mark.parametrize("name", ["fp16_norm_infinity_L0", "checkpoint_reentrant_mix", "checkpoint_non_reentrant_mix",
                                  "pair/baseline_mix", "pair/mlp_bf16_L0", "L0_tensor"])  # fmt: skip
def test_healthy_dumps_have_no_finding(name: str, tmp_path: Path) -> None:
    found = diagnose(imported(MSPROBE / name, tmp_path / "run"))

    assert (found.status, found.findings) == ("healthy", ())


def test_a_mask_that_a_softmax_ends_is_not_blamed_for_a_bad_loss_elsewhere(tmp_path: Path) -> None:
    masked = tensor(2, float("-inf"))
    nan = tensor(float("nan"), float("nan"), shape=())
    data = {
        "Tensor.masked_fill.0.forward": forward([tensor(2, -2)], [masked]),
        "Tensor.__add__.0.forward": forward([masked, tensor(0, 0)], [masked]),
        "Functional.softmax.0.forward": forward([masked], [tensor(1, 0)]),
        "Torch.log.0.forward": forward([tensor(1, -1)], [tensor(float("nan"), float("nan"))]),
        "Tensor.mean.0.forward": forward([tensor(float("nan"), float("nan"))], [nan]),
        "Tensor.mean.0.backward": {"input": [tensor(1, 1, shape=())], "output": [tensor(1, 1)]},
    }
    first = first_of(imported(write(tmp_path / "d", data), tmp_path / "run"))

    assert first.op == "Torch.log"
    assert "the loss descends from it" in first.why
    assert (first.cause, first.title) == ("out-of-domain", "log of a negative number")


@pytest.mark.parametrize(
    ("name", "high", "low", "cause"),
    [
        ("Torch.sqrt", 4, -0.5, "out-of-domain"),
        ("Torch.acos", 1.5, 0, "out-of-domain"),
        ("Torch.sqrt", 4, 0, "unknown"),
    ],
)
def test_a_function_outside_its_domain_is_named_from_a_dump(
    name: str, high: float, low: float, cause: str, tmp_path: Path
) -> None:
    nan = tensor(float("nan"), float("nan"))
    data = {
        f"{name}.0.forward": forward([tensor(high, low)], [nan]),
        "Tensor.mean.0.forward": forward([nan], [tensor(float("nan"), float("nan"), shape=())]),
        "Tensor.mean.0.backward": {"input": [tensor(1, 1, shape=())], "output": [tensor(1, 1)]},
    }

    first = first_of(imported(write(tmp_path / "d", data), tmp_path / "run"))

    assert (first.op, first.cause) == (name, cause)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Tensor.exp.0.forward", "Tensor.exp made +inf (step 0)"),
        ("Module.fc.Linear.forward.0", "Linear made +inf (step 0, fc)"),
    ],
)
def test_an_infinite_output_without_a_loss_is_a_note_and_never_healthy(name: str, said: str, tmp_path: Path) -> None:
    data = {name: forward([tensor(300, -1)], [tensor(float("inf"), 0)])}

    found = diagnose(imported(write(tmp_path / "d", data), tmp_path / "run"))

    assert (found.status, found.why) == ("cannot-tell", (said,))
    assert [(f.severity, f.step, f.chips) for f in found.findings] == [("note", 0, ("+inf",))]


@pytest.mark.parametrize("output", [tensor(3, 0), tensor(3, float("-inf"))])
def test_finite_outputs_and_masks_without_a_loss_are_healthy(output: Any, tmp_path: Path) -> None:
    data = {"Tensor.exp.0.forward": forward([tensor(1, -1)], [output])}

    assert diagnose(imported(write(tmp_path / "d", data), tmp_path / "run")).status == "healthy"


def test_another_eps_is_found_in_a_mix_dump_and_its_module_named(tmp_path: Path) -> None:
    base, other = (imported(MSPROBE / f"pair/{name}_mix", tmp_path / name) for name in ("baseline", "layernorm_eps"))

    found = compare_runs(base, other)

    assert found.first is not None
    assert (found.status, found.first.site, found.cause) == ("diverged", "blocks.2.ln1", "config-mismatch")
    assert found.fit is not None
    assert found.fit.values == {"baseline": 1e-5, "candidate": 1e-3}


def test_at_level_l0_the_norm_is_named_though_its_eps_was_not_recorded(tmp_path: Path) -> None:
    base, other = (imported(MSPROBE / f"pair/{name}_L0", tmp_path / name) for name in ("baseline", "layernorm_eps"))

    found = compare_runs(base, other)

    assert found.first is not None
    assert (found.status, found.first.site, found.first.port) == ("diverged", "blocks.2.ln1", "out[0]")


def test_a_module_in_bfloat16_is_named_and_its_format_seen(tmp_path: Path) -> None:
    base, other = (imported(MSPROBE / f"pair/{name}_L0", tmp_path / name) for name in ("baseline", "mlp_bf16"))

    found = compare_runs(base, other)

    assert found.first is not None
    assert (found.status, found.first.site, found.cause) == ("diverged", "blocks.2.mlp", "precision-mismatch")
    assert len(found.matching.unmatched_baseline) == 20  # what the candidate's hooks missed is not called equal


@pytest.mark.parametrize("pair", [("baseline_L0", "baseline_mix"), ("layernorm_eps_L0", "layernorm_eps_mix")])
def test_levels_of_one_program_are_the_same_where_both_were_recorded(pair: tuple[str, str], tmp_path: Path) -> None:
    found = compare_runs(*(imported(MSPROBE / "pair" / name, tmp_path / name) for name in pair))

    assert found.status == "same"
    assert found.n_differ == 0


def test_at_level_l1_a_call_more_is_no_difference_in_all_later_calls(tmp_path: Path) -> None:
    def run_of(name: str, sizes: list[float]) -> RecordedRun:
        data = {f"Functional.linear.{i}.forward": forward([tensor(size, 0)], [tensor(2 * size, 0)])
                for i, size in enumerate(sizes)}  # fmt: skip
        data["Functional.gelu.0.forward"] = forward([tensor(1, 0)], [tensor(2, 0)])
        return imported(write(tmp_path / name, data, level="L1"), tmp_path / f"run-{name}")

    found = compare_runs(run_of("a", [1, 2, 3]), run_of("b", [9, 1, 2, 3]))

    assert found.n_differ == 0
    assert any("Functional.linear (3 and 4 times)" in note for note in found.notes)
    assert {card.spot.site for card in found.matching.unmatched_baseline} == {"Functional.linear"}
