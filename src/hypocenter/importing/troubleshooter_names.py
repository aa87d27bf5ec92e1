"""What the names of TroubleShooter's npy files say.

Of `ts.save` and `ts.save_grad` (and of MindSpore's TensorDump, which they call) there are two forms:
`3_dense.x1_backward.npy`, number first, and since 2023-11 `dense.x1_backward_float32_3.npy`, format and number last.
Of `api_dump` it is `Functional_pad_0_forward_input.0.npy`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_NAME_AT_MOST = 1024  # characters
_FIRST = re.compile(r"(\d{1,15})_(.+)\.npy", re.DOTALL)
_LAST = re.compile(r"(.+)_((?:bfloat|float|int|uint|complex)\d{1,3}|bool_?)_(\d{1,15})\.npy", re.DOTALL | re.IGNORECASE)
_API = re.compile(
    r"([A-Z][A-Za-z]{0,30})_(.+)_(\d{1,12})_(forward|backward)_(input|output)((?:\.\w{1,100}){0,16})\.npy", re.DOTALL
)
_BACKWARD = "_backward"  # what save_grad puts behind a name
_GRADIENTS = re.compile(r"(?:.*_)?(?:[a-z]{2,5}_)?grads?(?:ients?)?", re.IGNORECASE | re.DOTALL)
_OLD_GRADIENTS = re.compile(r"((?:.*_)?grads)_(.+?)(?:_\d{1,9})?", re.IGNORECASE | re.DOTALL)
_PORTS = {("forward", "input"): "in", ("forward", "output"): "out", ("backward", "input"): "grad_out",
          ("backward", "output"): "grad_in"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A file's name, taken apart."""

    site: str
    port: str
    phase: Literal["forward", "backward", "grad"]
    number: int  # counts all files in the order in which they were saved; of an API its calls
    dtype: str = ""  # as labelled
    is_api: bool = False


def parse(name: str) -> Saved | None:
    """A name taken apart; None for what is none of TroubleShooter's."""
    if len(name) > _NAME_AT_MOST:
        return None
    api = _API.fullmatch(name)
    if api is not None:
        places = "".join(f"[{part}]" for part in api[6].split(".")[1:]) or "[0]"
        return Saved(
            site=f"{api[1]}.{api[2]}", port=f"{_PORTS[api[4], api[5]]}{places}",
            phase="forward" if api[4] == "forward" else "backward", number=int(api[3]), is_api=True,
        )  # fmt: skip
    last = _LAST.fullmatch(name)
    if last is not None:
        return _saved(last[1], int(last[3]), last[2].lower().rstrip("_"))
    first = _FIRST.fullmatch(name)
    return _saved(first[2], int(first[1]), "") if first is not None else None


def _saved(text: str, number: int, dtype: str) -> Saved:
    is_backward = text.endswith(_BACKWARD) and len(text) > len(_BACKWARD)
    text = text[: -len(_BACKWARD)] if is_backward else text
    name, _, key = text.partition(".")
    old = _OLD_GRADIENTS.fullmatch(text) if not _GRADIENTS.fullmatch(name) else None
    name, key = (old[1], old[2]) if old is not None else (name, key)
    if _GRADIENTS.fullmatch(name) and not is_backward:  # of gradients that were handed over by the program
        site = f"{name}.{key}" if key.isdigit() else key or name
        return Saved(site=site, port="grad", phase="grad", number=number, dtype=dtype)
    port = "grad_out" if is_backward else "out"
    return Saved(
        site=name or text, port=f"{port}[{key or 0}]", phase="backward" if is_backward else "forward", number=number,
        dtype=dtype,
    )  # fmt: skip
