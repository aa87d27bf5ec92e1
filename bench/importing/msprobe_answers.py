"""Run by a Python that has msprobe: dumps programs with a planted fault, and asks msprobe's own analysis of each dump.

    python msprobe_answers.py OUT

makes OUT/dumps/CASE/LEVEL/step*/ and OUT/answers.json: of `overflow_check` the first call it names in each step, or why
there is none; of `compare` the first row of a pair that does not pass. Each is forked from one process that is warm.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from msprobe import msprobe as command
from msprobe.pytorch import PrecisionDebugger

sys.path.insert(0, str(Path(__file__).resolve().parent))
from faulty_gpt import GPT, LENGTH, WORDS, Adapted  # isort: skip

HERE = Path(__file__).resolve().parent

LEVELS = ("L0", "L1", "mix")
LEVELS_OF_PAIRS = ("L0", "mix")
OVERFLOWS = ("cast", "mask", "mask_log", "sqrt", "input", "weight", "adam")
RANKS = {"two_ranks": [], "two_ranks_late": [2]}  # and the steps that are dumped: all, or one
PAIRED = ("good", "eps", "bf16", "decay", "threads", "lora")
STEPS, BAD_STEP = 2, 1
SMALL, LARGE = (2, 16), (4, 64)  # depth, width: of programs that overflow, and of pairs
BATCH = 4


def train(case: str, debugger: PrecisionDebugger, rank: int, size: int) -> None:
    """A few steps of the case; dumped where the debugger wants it."""
    torch.manual_seed(0)
    model = planted(GPT(*(LARGE if case in PAIRED else SMALL)), case)
    if case == "threads":
        torch.set_num_threads(2)
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if size > 1 else model
    optimizer = optimizer_of(case, model)
    torch.manual_seed(1 + rank)
    for step in range(STEPS + (size > 1)):
        ids, y = (torch.randint(0, WORDS, (BATCH, LENGTH)) for _ in range(2))
        extra = torch.randn(BATCH, LENGTH, model.inp.in_features)
        is_bad = step == BAD_STEP
        if case == "input" and is_bad:
            extra[0, 0, 0] = float("nan")
        if case == "weight" and is_bad:
            model.blocks[1].attn.proj.weight.data[0, 0] = float("nan")
        debugger.start(model=wrapped)
        z = wrapped(ids, extra)
        loss = F.cross_entropy(z.view(-1, WORDS), y.view(-1))
        if case == "mask_log" and is_bad:
            loss = loss + torch.log(loss - 100)
        if case == "sqrt" and is_bad:
            loss = loss + torch.sqrt((z * 0).pow(2).sum())
        if size > 1 and rank == 1 and is_bad:
            loss = loss + (z * 1e30).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()


def planted(model: GPT, case: str) -> GPT:
    """The model with the case's fault, where it is one of the model."""
    if case in ("mask", "mask_log"):
        for block in model.blocks:
            block.attn.is_masked_by_hand = True
    elif case == "cast":
        model.blocks[1].mlp.fault = "cast"
    elif case == "bf16":
        model.blocks[2].mlp.fault = "bf16"
    elif case == "eps":
        model.blocks[2].ln1.eps = model.blocks[2].ln2.eps = 1e-3
    elif case == "lora":
        model.blocks[0].attn.qkv = Adapted(model.blocks[0].attn.qkv)  # not trained yet: it adds zero
    return model


def optimizer_of(case: str, model: GPT) -> torch.optim.Optimizer:
    """SGD, Adam that divides by zero, or AdamW with weight decay on all parameters or on matrices only."""
    if case == "adam":
        return torch.optim.Adam(model.parameters(), 1e-3, eps=0.0, foreach=False)
    if case not in PAIRED:
        return torch.optim.SGD(model.parameters(), 1e-3, foreach=False)
    untrained = {f"blocks.0.attn.qkv.{part}.weight" for part in ("down", "up")}
    named = [(name, p) for name, p in model.named_parameters() if name not in untrained]
    biases = [p for name, p in named if name.endswith("bias") and case == "decay"]
    rest = [p for _, p in named if all(p is not b for b in biases)]
    groups = [{"params": rest, "weight_decay": 0.1}, *([{"params": biases, "weight_decay": 0.0}] if biases else [])]
    return torch.optim.AdamW(groups, 1e-2, foreach=False)


def dump(folder: Path, case: str, level: str, rank: int = 0, size: int = 1) -> None:
    """The dump of a case at a level: statistics."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    config = folder.parent / f"{level}-{rank}.json"
    config.write_text(json.dumps({
        "task": "statistics", "dump_path": str(folder), "rank": [], "step": RANKS.get(case, []), "level": level,
        "statistics": settings,
    }))  # fmt: skip
    if size > 1:
        dist.init_process_group("gloo", rank=rank, world_size=size, init_method=f"file://{folder}.store")
    train(case, PrecisionDebugger(config_path=str(config)), rank, size)


def said(out: Path, *words: str) -> None:
    """The tool's own command, in this process."""
    sys.argv = ["msprobe", *words, "-o", str(out)]
    command.main()


def forked(log: Path, *jobs: Callable[[], object]) -> bool:
    """Run each in a process of its own, at once; whether all ended well."""
    children: list[int] = []
    for job in jobs:
        child = os.fork()
        if not child:
            code = 1
            try:
                to = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                os.dup2(to, 1)
                os.dup2(to, 2)
                job()
                code = 0
            except BaseException as error:  # its last words are the answer
                os.write(2, f"{type(error).__name__}: {error}\n".encode())
            finally:
                os._exit(code)
        children.append(child)
    states = [os.waitpid(child, 0)[1] for child in children]
    return not any(states)


def last_words(log: Path) -> str:
    """Of what a command printed, the last line that says something."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "nothing"


def overflow_check(step: Path, out: Path) -> list[str]:
    """The calls named by `msprobe overflow_check`, as RANK: CALL (FILE:LINE); its last words where there are none."""
    log = out.with_suffix(".log")
    forked(log, lambda: said(out, "overflow_check", "-i", str(step)))
    files = sorted(out.glob("anomaly_analyze_*.json"))
    if not files:
        words = last_words(log)
        return [words[words.find("Cannot find") :] if "Cannot find" in words else words]
    found: dict[str, list[dict[str, Any]]] = json.loads(files[-1].read_text())
    return [f"{rank}: {node['op_name']}{line_of(node)}" for rank, nodes in found.items() for node in nodes]


def line_of(node: dict[str, Any]) -> str:
    """The innermost line of ours in the stack that the tool gives with a call."""
    frames = re.findall(rf"{re.escape(str(HERE))}/(\w+\.py), line (\d+)", " ".join(node.get("stack_info") or []))
    return f" ({frames[0][0]}:{frames[0][1]})" if frames else ""


def compare(golden: Path, target: Path, out: Path) -> dict[str, Any]:
    """Of `msprobe compare`: the first row that does not pass and how many rows got which result, or what it said."""
    log = out.with_suffix(".log")
    pair = [next(folder.glob("*/dump.json")) for folder in (golden, target)]
    forked(log, lambda: said(out, "compare", "-tp", str(pair[1]), "-gp", str(pair[0])))
    table = next(out.glob("*.csv"), None)
    if table is None:
        return {"said": last_words(log)}
    csv.field_size_limit(sys.maxsize)
    with table.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    first = next((row for row in rows if row.get("Result") != "pass"), {})
    return {"first": first.get("NPU Name", ""), "why": " ".join(str(first.get("Err_message", "")).split()),
            "results": dict(Counter(row["Result"] for row in rows))}  # fmt: skip


def first_difference(golden: Path, target: Path, out: Path) -> dict[str, Any]:
    """Of `msprobe compare -da`: the calls it names. It wants folders of ranks: copies of the one that is there."""
    words: list[str] = []
    for option, folder in (("-tp", target), ("-gp", golden)):
        copy = out.with_name(f"{out.name}{option}")
        shutil.copytree(next(path for path in folder.iterdir() if path.is_dir()), copy / "rank0")
        words += [option, str(copy)]
    log = out.with_suffix(".log")
    forked(log, lambda: said(out, "compare", *words, "-da"))
    files = sorted(out.rglob("diff_analyze_*.json"))
    if not files:
        return {"said": last_words(log)}
    found: dict[str, list[dict[str, Any]]] = json.loads(files[-1].read_text())
    return {"names": [node["op_name"] for nodes in found.values() for node in nodes]}


def made(dumps: Path, case: str, level: str) -> bool:
    """Make the dump of a case; whether it went well."""
    folder, size = dumps / case / level, 2 if case in RANKS else 1
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.parent / f"{level}.log"
    if forked(log, *(partial(dump, folder, case, level, rank, size) for rank in range(size))):
        return True
    print(f"{case} {level}: {last_words(log)}", file=sys.stderr)
    return False


def asked(dumps: Path, case: str, level: str, answers: Path) -> dict[str, Any]:
    """What the tool's own analysis says of each step of a case, by CASE/LEVEL/STEP."""
    told: dict[str, Any] = {}
    for step in sorted((dumps / case / level).glob("step*")):
        name = f"{case}/{level}/{step.name}"
        place = answers / name.replace("/", "-")
        if case not in PAIRED:
            told[name] = overflow_check(step, place)
        elif case != "good":
            golden = dumps / "good" / level / step.name
            told[name] = compare(golden, step, place)
            told[f"{name}/-da"] = first_difference(golden, step, place.with_name(f"{place.name}-da"))
    return told


def main() -> int:
    """All dumps, then all answers; 0 when every dump was made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dumps-only", action="store_true", help="ask nothing")
    parser.add_argument("--only", nargs="*", default=["*"], metavar="CASE/LEVEL", help="patterns of a shell")
    wanted = parser.parse_args()
    jobs = [(case, level) for case in (*OVERFLOWS, *RANKS) for level in LEVELS]
    jobs += [(case, level) for case in PAIRED for level in LEVELS_OF_PAIRS]
    jobs = [job for job in jobs if any(fnmatch("/".join(job), pattern) for pattern in wanted.only)]
    dumps, answers = wanted.out / "dumps", wanted.out / "answers"
    if not all(made(dumps, *job) for job in jobs):
        return 1
    if not wanted.dumps_only:
        answers.mkdir()
        told = {name: answer for job in jobs for name, answer in asked(dumps, *job, answers).items()}
        (wanted.out / "answers.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
