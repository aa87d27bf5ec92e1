"""The GPT of programs/gpt_torch.py and its port to MindSpore: interpreters, tokens, weights converted by us.

MindSpore needs numpy < 2, so it lives in an environment of its own: MINDSPORE_PYTHON names its interpreter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from hypocenter.cli import main

PROGRAMS = Path(__file__).parent / "programs"
TORCH, MINDSPORE = PROGRAMS / "gpt_torch.py", PROGRAMS / "gpt_mindspore.py"
PYTHON = os.environ.get("MINDSPORE_PYTHON", sys.executable if find_spec("mindspore") else "")
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Files that both programs start from, in one folder."""

    folder: Path

    @property
    def tokens(self) -> Path:
        """The text, for interpreters whose own topics may be others."""
        return self.folder / "tokens.npy"

    @property
    def weights(self) -> Path:
        """What torch draws."""
        return self.folder / "init.safetensors"

    @property
    def like(self) -> Path:
        """What MindSpore draws: names and shapes of the port."""
        return self.folder / "new.ckpt"

    @property
    def converted(self) -> Path:
        """Torch's weights as the port wants them."""
        return self.folder / "converted.ckpt"


def prepare(folder: Path) -> Pair:
    """Write tokens and weights, and convert the weights, with no map of names."""
    pair = Pair(folder=folder)
    started(sys.executable, PROGRAMS / "text_arrays.py", pair.tokens)
    started(sys.executable, TORCH, "--save", pair.weights)
    started(PYTHON, MINDSPORE, "--save", pair.like)
    convert(pair.weights, like=pair.like, to=pair.converted)
    return pair


def convert(source: Path, *, like: Path, to: Path) -> None:
    """`hypocenter weights convert SOURCE --like LIKE -o TO`."""
    assert main(["weights", "convert", str(source), "--like", str(like), "-o", str(to)]) == 0


def started(*words: object) -> str:
    """What a program prints. It ends well."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("HYPOCENTER")}
        | {"OMP_NUM_THREADS": "1", "GLOG_v": "3"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
