"""What other tools say about the failure of t5_overflow.py: each trains it once more, in a process of its own."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

Train = Callable[[argparse.Namespace], None]
SILENCE = "nothing: it never fired"


def compare() -> None:
    """Print what each tool says, with the options that this program was started with."""
    options = [a for a in sys.argv[1:] if a != "--compare"]
    for name in TOOLS:
        code = f"import sys; sys.argv[1:] = {options!r}; import compare_tools; compare_tools.one({name!r})"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
        print(f"{name}\n  {(done.stdout or done.stderr).strip()}", flush=True)


def one(name: str) -> None:
    """Train under one tool and print its verdict."""
    import t5_overflow
    import torch

    torch.set_num_threads(1)
    print(TOOLS[name](t5_overflow.parse(), t5_overflow.train))


def debug_underflow_overflow(options: argparse.Namespace, train: Train, attention: str = "sdpa") -> str:
    """transformers.debug_utils.DebugUnderflowOverflow: the module of the last frame."""
    from transformers.debug_utils import DebugUnderflowOverflow

    def attach(model: Any) -> None:
        model.set_attn_implementation(attention)
        DebugUnderflowOverflow(model)

    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), _once_made(attach):
            train(options)
    except (ValueError, NotImplementedError) as error:
        return f"at step {_steps(said)}: {_last_frame(said.getvalue()) or _one_line(error)}"
    return SILENCE


@contextlib.contextmanager
def _once_made(attach: Callable[[Any], object]) -> Iterator[None]:
    """Call `attach(model)` as soon as the program has made its model."""
    import t5_overflow

    make = t5_overflow.make_model

    def make_watched(options: argparse.Namespace) -> Any:
        model = make(options)
        attach(model)
        return model

    t5_overflow.make_model = make_watched
    try:
        yield
    finally:
        t5_overflow.make_model = make


def _steps(said: io.StringIO) -> int:
    """How many steps were done before it stopped: the number of the step that it stopped in."""
    return len(re.findall(r"^step ", said.getvalue(), flags=re.M))


def _last_frame(text: str) -> str:
    """The last frame with a value that is not finite: "module Class: the line with inf or nan"."""
    frame, last = "", ""
    for line in text.splitlines():
        if re.match(r"^\s{8,}\S", line):
            frame = " ".join(line.split())
        elif re.search(r"\b(inf|nan)\b", line) and "step" not in line and "Detected" not in line:
            last = f"{frame}: {' '.join(line.split())}"
    return last


def anomaly_mode(options: argparse.Namespace, train: Train) -> str:
    """torch.autograd.detect_anomaly: the backward function and the last line of its forward trace."""
    import torch

    said = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("always")
        try:
            with contextlib.redirect_stdout(said):
                train(options)
        except RuntimeError as error:
            trace = "\n".join(str(w.message) for w in caught)
            lines = re.findall(r'File "([^"]+)", line (\d+), in \S+\n\s+(.+)', trace)
            own = [x for x in lines if "/torch/" not in x[0]]
            where = f", forward at {Path(own[-1][0]).name}:{own[-1][1]} `{own[-1][2]}`" if own else ""
            return f"at step {_steps(said)}: {_one_line(error)}{where}"
    return SILENCE


def first_nonfinite_op(options: argparse.Namespace, train: Train) -> str:
    """A TorchDispatchMode that stops at the first op with an output that is not finite."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Found(Exception):
        pass

    class Scan(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if "empty" in str(func):  # memory that is not written yet
                return out
            for value in tree_leaves(out):
                if isinstance(value, torch.Tensor) and value.is_floating_point() and not value.isfinite().all():
                    raise Found(f"{func} {_own_line()}")
            return out

    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.ExitStack() as stack:
            stack.enter_context(_once_made(lambda model: stack.enter_context(Scan())))
            train(options)
    except Found as found:
        return f"at step {_steps(said)}: {found}"
    return SILENCE


def _own_line() -> str:
    frames = [f for f in traceback.extract_stack() if "/torch/" not in f.filename and f.filename != __file__]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno} `{frames[-1].line}`"


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


TOOLS: dict[str, Callable[[argparse.Namespace, Train], str]] = {
    "DebugUnderflowOverflow": debug_underflow_overflow,
    "DebugUnderflowOverflow, eager attention": partial(debug_underflow_overflow, attention="eager"),
    "torch.autograd.detect_anomaly": anomaly_mode,
    "first non-finite op (TorchDispatchMode)": first_nonfinite_op,
}
