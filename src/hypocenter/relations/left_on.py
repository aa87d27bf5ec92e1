"""Dropout that is left on in evaluation: nobody told the function which mode the model is in."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType
from typing import Any

from torch import nn

from hypocenter.nouns import Source
from hypocenter.relations.scores import Wrong
from hypocenter.replay.engine import Replayer
from hypocenter.tap.call_site import running_module
from hypocenter.tap.source import source_of, user_frame

_FLAG = 2  # place of `training`, or `train`, among the arguments of torch's functions of dropout
_ATTENTION = "scaled_dot_product_attention"


@dataclass(frozen=True, slots=True)
class Dropping:
    """A call of a function that dropped something.

    Attributes:
        name: of the function.
        rate: how much of it.
        module: the innermost one whose code has called it.
        code, line: of the program.
        span: first and last column of the call in that line, where Python (from 3.11 on) tells; else None.
    """

    name: str
    rate: float
    module: nn.Module
    code: CodeType
    line: int
    span: tuple[int | None, int | None] | None


def dropping(func: Callable[..., Any], args: Any, kwargs: dict[str, Any], rate: Any, frame: Any) -> Dropping | None:
    """Return what a call of dropout drops; None: nothing, or no module of the program makes it."""
    name = getattr(func, "__name__", "")
    flag = args[_FLAG] if len(args) > _FLAG else kwargs.get("training", kwargs.get("train", True))
    if not isinstance(rate, float) or not 0.0 < rate < 1.0 or (flag is False and name != _ATTENTION):
        return None
    own, module = user_frame(frame, Replayer._do.__code__), running_module(frame)
    if own is None or module is None:  # code outside of modules is of training alone
        return None
    return Dropping(name, rate, module, own.f_code, own.f_lineno, _span(own))


def _span(frame: FrameType) -> tuple[int | None, int | None] | None:
    if sys.version_info < (3, 11):
        return None
    *_, first, last = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    return first, last


def left_on(calls: list[Dropping]) -> Iterator[tuple[Wrong, nn.Module, Source]]:
    """Yield what stays on of what was called in evaluation mode, each line of the program once.

    `training=True` in the call is a word of the program for it: a note.
    """
    seen: set[tuple[CodeType, int]] = set()
    for call in calls:
        if (call.code, call.line) in seen:
            continue
        seen.add((call.code, call.line))
        is_attention = call.name == _ATTENTION
        is_meant = not is_attention and not _is_left_out(call)
        if is_attention:
            why, remedy = f"`dropout_p` of {call.name} is not 0 there", "pass dropout_p=rate if self.training else 0.0"
        else:
            why = f"`training` of {call.name} is True, {'as the program says' if is_meant else 'its default'}"
            remedy = "pass training=self.training"
        why = f"a forward in evaluation mode drops {call.rate:.0%}: {why}"
        wrong = Wrong(title="dropout stays on in evaluation", why=why, remedy=remedy, is_note=is_meant)
        yield wrong, call.module, source_of(call.code.co_filename, call.line, call.code.co_name)


def _is_left_out(call: Dropping) -> bool:
    """Whether the line calls the function of torch and says nothing of the mode; False where that cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(call.code.co_filename)))
    except (SyntaxError, ValueError):
        return False
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and node.lineno <= call.line <= (node.end_lineno or node.lineno)
        and call.span in (None, (None, None), (node.col_offset, node.end_col_offset))
        and _name(node.func) == call.name
    ]
    return bool(found) and not any(
        len(node.args) > _FLAG
        or any(isinstance(each, ast.Starred) for each in node.args)
        or any(each.arg in (None, "training", "train") for each in node.keywords)
        for node in found
    )


def _name(called: ast.expr) -> str:
    """Return the name of a function of a module; "" of a method or an attribute of the program's own."""
    if isinstance(called, ast.Name):
        return called.id
    is_own = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "self"
    return called.attr if isinstance(called, ast.Attribute) and not is_own else ""
