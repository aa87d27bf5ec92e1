"""The table of formats against what NumPy and torch know, and that there is no other one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import hypocenter
from hypocenter.errors import UnknownNameError
from hypocenter.formats import FORMATS, LARGEST, find_format, format_of


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_numbers_agree_with_torch(name: str) -> None:
    form, info = FORMATS[name], torch.finfo(getattr(torch, name))

    assert (form.max, form.smallest_normal, form.eps) == (info.max, info.smallest_normal, info.eps)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_the_smallest_subnormal_agrees_with_numpy(name: str) -> None:
    assert FORMATS[name].smallest_subnormal == float(np.finfo(name).smallest_subnormal)


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"float64"}))
def test_the_smallest_subnormal_is_the_bit_pattern_one(name: str) -> None:
    dtype = getattr(torch, name)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]

    assert FORMATS[name].smallest_subnormal == torch.tensor([1], dtype=bits).view(dtype).double().item()


@pytest.mark.parametrize("name", ["float16", "fp16", "torch.float16", "half"])
def test_a_format_has_several_names(name: str) -> None:
    assert find_format(name) is FORMATS["float16"]


def test_an_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError) as refused:
        find_format("float12")

    assert str(refused.value) == (
        "error[unknown-name]: unknown floating-point format 'float12'\n"
        "   = fix: use one of float64, float32, bfloat16, float16, float8_e4m3fn, float8_e5m2"
    )


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.bfloat16, "bfloat16"), ("torch.float16", "float16"), (np.dtype("float32"), "float32"),
        ("complex128", "float64"), (torch.float8_e4m3fnuz, "float8_e4m3fnuz"), ("int64", None), ("", None),
    ],
)  # fmt: skip
def test_a_dtype_has_a_format_or_none(dtype: object, name: str | None) -> None:
    form = format_of(dtype)

    assert (form.name if form else None) == name


@pytest.mark.parametrize("name", ["float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_formats_with_one_zero_agree_with_their_bits(name: str) -> None:
    form, dtype = format_of(name), getattr(torch, name)
    assert form is not None
    every = torch.arange(1, 128, dtype=torch.uint8).view(dtype).double()

    assert (every.min().item(), every.max().item()) == (form.smallest_subnormal, form.max)
    assert every[every > 1].min().item() - 1 == form.eps
    assert form.max == LARGEST[name]


def test_no_other_place_holds_these_numbers() -> None:
    told = {(name, what): getattr(form, what) for name, form in FORMATS.items() for what in FACTS}
    root = Path(hypocenter.__file__).parent

    found = [
        f"{path.relative_to(root)}: {what} of {', '.join(numbers)}"
        for path in root.rglob("*.py")
        if path.name != "formats.py"
        for numbers in _tables(ast.parse(path.read_text(encoding="utf-8")))
        for what in FACTS
        if all(told[name, what] == number for name, number in numbers.items())
    ]

    assert found == []


FACTS = (
    "fraction_bits",
    "eps",
    "roundoff",
    "max",
    "smallest_normal",
    "smallest_subnormal",
    "least_kept",
    "whole_up_to",
)


def _tables(tree: ast.AST) -> Iterator[dict[str, float]]:
    """Numbers of dictionaries that are written out, by format; of two formats or more."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            names = [getattr(key, "value", None) if isinstance(key, ast.Constant) else getattr(key, "attr", None)
                     for key in node.keys]  # fmt: skip
            pairs = zip(names, map(_number, node.values), strict=True)
            numbers = {str(name): number for name, number in pairs if name in FORMATS and number is not None}
            if len(numbers) > 1:
                yield numbers


def _number(node: ast.expr) -> float | None:
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            number = _number(inner)
            return None if number is None else -number
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            base, power = _number(left), _number(right)
            return None if base is None or power is None else base**power
    return None
