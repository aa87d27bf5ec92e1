"""`--no-dropout`: no value is dropped at random, in cells, functions, operators and attention.

It is imposed where values are dropped: a model's own `nn.Dropout(p=0.1)` still says 0.1 in a report. What stands in for
MindSpore's is source that its compiler can read, so that graphs do the same; `construct` of a cell and the functions
just hand their input on. Operators (`ops.Dropout`, flash attention) get their rate when they are made: those that a
program made before `hypocenter.watch` keep theirs.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import mindspore  # pyright: ignore[reportMissingImports]

from hypocenter.config import Config

_CELLS = ("Dropout", "DropoutExt", "Dropout1d", "Dropout2d", "Dropout2dExt", "Dropout3d")  # of mindspore.nn.layer.basic
_FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d")  # of mindspore.ops; all begin with `input`
_OF_MINT = ("dropout_ext", "dropout2d_ext")  # mint.nn.functional.dropout, dropout2d
_OPERATORS = (("Dropout", 0), ("Dropout2D", 0), ("Dropout3D", 0), ("FlashAttentionScore", 1))  # place of keep_prob
_INNER = "_inner_dropout"  # of attention that is written out: `nn.MultiheadAttention`
_FUSED = "speed_fusion_attention"
_RECURRENT = {"LSTM": 5}  # operators with a rate of dropout between layers, and its place
_done: list[bool] = []


def construct(self: Any, x: Any) -> Any:
    """Return the input as it is; stands in for a dropout cell's own `construct`."""
    return x


def _of_input(input: Any, p: Any = 0.5, training: Any = True, seed: Any = None) -> Any:
    return input


def _of_input_ext(input: Any, p: Any = 0.5, training: Any = True, inplace: Any = False) -> Any:
    return input


def begin(config: Config, warn: Any) -> dict[str, str]:
    """Replace what drops values at random, if `--no-dropout` was given."""
    if not config.no_dropout:
        return {}
    if not _done:
        _done.append(True)
        _impose()
    return {"dropout": "dropout off"}


def _impose() -> None:
    from mindspore.nn.layer import basic  # pyright: ignore[reportMissingImports]
    from mindspore.ops.function import nn_func  # pyright: ignore[reportMissingImports]

    for name in _CELLS:
        kind = getattr(basic, name, None)
        if kind is not None:
            kind.construct = construct
    stand_ins = dict.fromkeys(_FUNCTIONS, _of_input) | dict.fromkeys(_OF_MINT, _of_input_ext)
    swaps = {getattr(nn_func, name): new for name, new in stand_ins.items() if hasattr(nn_func, name)}
    if hasattr(nn_func, _INNER):
        swaps[getattr(nn_func, _INNER)] = _of_input
    _swap_everywhere(swaps)
    _without_fused_rate(nn_func)
    operators: Any = mindspore.ops.operations
    for name, at in _OPERATORS:
        _without_rate(getattr(operators, name, None) or getattr(operators.nn_ops, name, None), "keep_prob", at, 1.0)
    for name, at in _RECURRENT.items():
        _without_rate(getattr(operators, name, None), "dropout", at, 0.0)


def _swap_everywhere(swaps: dict[Any, Any]) -> None:
    """Swap functions in all of MindSpore's modules, where the same function stands under many names."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("mindspore"):
            continue
        members: dict[str, Any] = getattr(module, "__dict__", {})  # anything may stand in sys.modules
        for key, held in list(members.items()):
            if callable(held) and held.__hash__ is not None and held in swaps:
                members[key] = swaps[held]


def _without_fused_rate(functions: Any) -> None:
    """Replace the one attention whose rate is given when its operator is called, not when it is made. Ascend only."""
    own = getattr(functions, _FUSED, None)
    if own is None:
        return

    @functools.wraps(own)
    def speed_fusion_attention(*args: Any, **kwargs: Any) -> Any:
        return own(*args, **{**kwargs, "keep_prob": 1.0})  # a keyword there

    _swap_everywhere({own: speed_fusion_attention})


def _without_rate(kind: Any, argument: str, at: int, none: float) -> None:
    """Let operators of a class that are made from now on drop nothing."""
    if kind is None:
        return
    own = kind.__init__

    @functools.wraps(own)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > at:
            own(self, *args[:at], none, *args[at + 1 :], **kwargs)
        else:
            own(self, *args, **{**kwargs, argument: none})

    kind.__init__ = __init__
