"""What pages start from, made once a process: programs, recordings and files, each by its name and a recipe."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path

from blocks import DOCS, Block, blocks
from runner import VARIABLES, run_page

HERE = Path(__file__).parent
DUMP = DOCS.parent / "tests/importing/samples/ptdbg_ascend/v3.0_dot_all/ptdbg_dump_v3.0"
SHORT = "--for diff --schedule 0-1 --param-schedule 0-2 --calibrate 0"
# What makes it, in a folder which has the programs: a block of start.md, and what lies in given/.
RECIPES = {
    "dump": f"cp -r {DUMP} dump",
    "gpu_run": f"hypocenter import {DUMP} -o gpu_run",
    "runs/mine": "hypocenter run --out runs/mine --level modules train.py",
    "gpu.csv": "python curves.py",
    "gpu-again.csv": "python curves.py",
    "npu.csv": "python curves.py",
    "my-model": "python policy.py",
    "tokens": "python tokens.py",
    "hf": "python checkpoints.py",
    "other": "python checkpoints.py",
    "good": f"hypocenter run --out good {SHORT} train.py --clean --steps 12",
    "again": f"hypocenter run --out again {SHORT} train.py --clean --steps 12",
    "new": f"hypocenter run --out new {SHORT} train.py --clean --steps 12 --lr 2e-3",
    "runs/torch": f"mkdir -p runs && cp -r {DOCS.parent / 'tests/golden/format-3'} runs/torch",
    "runs/scaled": "hypocenter run --out runs/scaled scaled.py",
    "runs/ops": "hypocenter run --out runs/ops --level ops --histogram full --schedule 0-3 train.py --clean",
}


@functools.cache
def _store() -> Path:
    return Path(tempfile.mkdtemp(prefix="given-"))


def put(names: list[str], folder: Path) -> None:
    """Copy what these names stand for into `folder`: `NAME`, `NAME as OTHER`; `NAME=VALUE` is a variable."""
    variables = [name for name in names if "=" in name]
    if variables:
        (folder / VARIABLES).write_text("\n".join(variables), encoding="utf-8")
    for name in (name for name in names if "=" not in name):
        source, _, other = name.partition(" as ")
        made = _made(source)
        target = folder / (other or source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if made.is_dir():
            shutil.copytree(made, target, symlinks=True)
        else:
            shutil.copy2(made, target)


@functools.cache
def _made(name: str) -> Path:
    target = _store() / name
    if name in RECIPES and not target.exists():
        _made("train.py")
        shutil.copytree(HERE / "given", _store(), dirs_exist_ok=True)
        run_page([Block("given", 0, "bash", "", RECIPES[name])], _store())
    elif (HERE / "given" / name).exists():
        return HERE / "given" / name
    elif name not in RECIPES:
        (program,) = (block for block in blocks(DOCS / "start.md") if block.file == name)
        target.write_text(program.text, encoding="utf-8")
    return target
