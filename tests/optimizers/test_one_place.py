"""No other place has a formula of an optimizer."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import hypocenter
from hypocenter.optimizers.rule import words_of

ADAM_AGAIN = """
def adam(group, state, grad, step):
    beta1, beta2 = group["betas"]
    return state["exp_avg"] / (1 - beta1**step) / (state["exp_avg_sq"].sqrt() + group["eps"])
"""


def test_no_other_place_has_a_formula() -> None:
    root = Path(hypocenter.__file__).parent
    of_formulas = re.compile("|".join(["beta", *(word for word in words_of() if "_" in word)]))

    found = [
        f"{path.relative_to(root)}: {name}"
        for path in root.rglob("*.py")
        if not path.is_relative_to(root / "optimizers") and of_formulas.search(text := path.read_text(encoding="utf-8"))
        for name in formulas(ast.parse(text))
    ]

    assert found == []


@pytest.mark.parametrize("sign", ["", "beta", ".sqrt"])
def test_a_second_one_would_be_found(sign: str) -> None:
    source = {"": ADAM_AGAIN, "beta": ADAM_AGAIN.replace("exp_", ""), ".sqrt": ADAM_AGAIN.replace("beta", "b")}[sign]

    assert formulas(ast.parse(source)) == ["adam"]


def formulas(tree: ast.AST) -> list[str]:
    """Functions that take the root of an optimizer's state, or correct a mean for its start."""
    words = {word for word in words_of() if "_" in word}  # "sum" and the like mean other things elsewhere
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and (_corrects(node) or (_takes_root(node) and not words.isdisjoint(_constants(node))))
    ]


def _constants(tree: ast.AST) -> set[object]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _takes_root(tree: ast.AST) -> bool:
    roots = (node.right for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow))
    return any(isinstance(root, ast.Constant) and root.value == 0.5 for root in roots) or any(
        isinstance(node, ast.Attribute) and node.attr == "sqrt" for node in ast.walk(tree)
    )


def _corrects(tree: ast.AST) -> bool:
    """1 - beta, or 1 - beta**step."""
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and getattr(node.left, "value", None) == 1
        and any("beta" in str(getattr(each, "id", getattr(each, "attr", ""))) for each in ast.walk(node.right))
        for node in ast.walk(tree)
    )
