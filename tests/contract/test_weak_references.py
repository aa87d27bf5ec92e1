"""Each weak reference of the torch side is one of ours, which a swap of tensors does not count."""

import ast
from pathlib import Path

import hypocenter

SOURCE = Path(hypocenter.__file__).parent


def test_no_plain_weak_reference_is_made():
    plain = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for path in SOURCE.rglob("*.py")
        if "mindspore" not in str(path)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "weakref.ref"
    ]

    assert plain == [], "say `Ref` of `tap/weakly.py`"
