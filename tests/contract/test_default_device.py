"""A program's default device (`torch.set_default_device`) is not ours: what we make says where it lies."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "hypocenter"
INSIDE = ("tap", "session", "replay", "summary", "relations")  # what runs inside of a training process
MAKERS = frozenset(
    (
        "arange",
        "as_tensor",
        "asarray",
        "empty",
        "empty_strided",
        "eye",
        "full",
        "linspace",
        "logspace",
        "ones",
        "rand",
        "randint",
        "randn",
        "randperm",
        "scalar_tensor",
        "tensor",
        "tril_indices",
        "triu_indices",
        "zeros",
    )
)


def without_device(path):
    """Lines that make a tensor where the program says."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "torch"
            and node.func.attr in MAKERS
            and not any(keyword.arg in ("device", None) for keyword in node.keywords)
        ):
            yield node


@pytest.mark.parametrize("room", INSIDE)
def test_what_we_make_says_where_it_lies(room):
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in sorted((SOURCE / room).rglob("*.py"))
        for node in without_device(path)
    ]

    assert found == []
