"""importing.mindspore_names: files taken apart from the right, scopes of cells."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hypocenter.importing.mindspore_names import FileName, dtype_of, flat, parse_file, scope_of, scope_of_flat

_WORD = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=6).map(lambda s: f"a{s}")
_CELL = st.tuples(_WORD, st.sampled_from(["Dense", "LayerNorm", "CellList"]))


def test_a_file_is_taken_apart_from_the_right() -> None:
    found = parse_file(
        "BiasAdd.Default_net.v2-Net_fc1-Dense_BiasAdd-op10.3.7.1795227767605265.input.1.DefaultFormat.Float32.npy"
    )

    assert found == FileName(
        op_type="BiasAdd", name="Default_net.v2-Net_fc1-Dense_BiasAdd-op10", time_us=1795227767605265, io="input",
        slot=1, dtype="float32",
    )  # fmt: skip
    assert found is not None
    assert found.number == 10


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("Conv2D.Conv2D-op12.2.7.161243956333802.output.0.ND.FLOAT16.npy", "float16"),  # of GE, on Ascend
        ("Conv2D.Conv2D-op12.2.7.161243956333802.output.0.32x384x13x13.npy", ""),  # of msaccucmp
        ("Add.Add-op1.0.0.1.output.0.DefaultFormat.npy", ""),  # as the documentation has it
        ("Add.Add-op1.0.0.1.output.0.DefaultFormat.BFloat16.npy", "bfloat16"),
    ],
)
def test_the_format_is_told_where_the_name_has_it(name: str, dtype: str) -> None:
    found = parse_file(name)

    assert found is not None
    assert found.dtype == dtype


@pytest.mark.parametrize(
    "name",
    ["0_dense.npy", "dump.json", "Add.Add-op1.0.0.1.sideways.0.npy", "Add.x.0.0.1.input.npy", "x" * 5000 + ".npy"],
)
def test_other_names_are_left_alone(name: str) -> None:
    assert parse_file(name) is None


@given(st.text(max_size=80), st.text(max_size=40))
@example("Add.x.0.0.1.input.", ".npy")
def test_any_text_is_parsed_or_refused(first: str, second: str) -> None:
    for text in (first, f"Add.{first}.0.0.1.input.0.{second}.npy"):
        found = parse_file(text)

        assert found is None or found.op_type + "." + found.name in text
        dtype_of(first)
        scope_of(first)
        scope_of_flat(first, second)


@given(st.lists(_CELL, max_size=4), st.sampled_from(["MatMul", "Mul"]), st.integers(0, 99))
def test_the_cells_of_a_scope_are_its_site(cells: list[tuple[str, str]], op: str, number: int) -> None:
    full = "/".join(
        ["Default", "network-WithLossCell", "_backbone-Net", *(f"{n}-{k}" for n, k in cells), f"{op}-op{number}"]
    )

    scope = scope_of(full)

    assert scope.site == ".".join(name for name, _ in cells)
    assert scope.kind == "forward"
    assert scope_of_flat(flat(full), op) == scope


@pytest.mark.parametrize(
    ("full", "kind", "site"),
    [
        ("Gradients/Default/network-WithLossCell/_backbone-Net/fc-Dense/Grad_MatMul/MatMul-op2", "backward", "fc"),
        ("Default/optimizer-Adam/Adam-op0", "optimizer", "optimizer"),
        ("Default/network-WithLossCell/_loss_fn-MSELoss/Sub-op0", "loss", "_loss_fn"),
        ("Default/network/layers/0/fc/MatMul-op0", "forward", "layers.0.fc"),  # reserve_class_name_in_scope=False
        ("Default/Mul-op0", "forward", ""),
    ],
)
def test_scopes_tell_the_direction(full: str, kind: str, site: str) -> None:
    scope = scope_of(full)

    assert (scope.kind, scope.site) == (kind, site)


def test_a_recompute_is_told() -> None:
    scope = scope_of("recompute_Default/network-WithLossCell/_backbone-Net/fc-Dense/MatMul-op0")

    assert (scope.recompute, scope.site, scope.kind) == (True, "fc", "forward")
