"""The Dump configuration that MindSpore is given: what was asked for, in the words of its JSON file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

PLAIN_PATH = re.compile(r"/[A-Za-z0-9_/-]+")  # what MindSpore 2.10 takes; it refuses dots and blanks
_NAME_PART = "[^/]*"


def settings(path: str, *, iterations: str, sites: Sequence[str], is_statistic: bool) -> str:
    """The file's text.

    Args:
        path: absolute; where to dump, of letters, digits, `-` and `_` alone.
        iterations: numbers of calls of graphs: "0|5-8|100-120" or "all".
        sites: globs of cells whose operators are wanted; empty: all operators.
        is_statistic: statistics instead of values. MindSpore refuses them on a CPU.
    """
    common: dict[str, Any] = {
        "op_debug_mode": 0, "dump_mode": 1 if sites else 0, "path": path, "net_name": "Net", "iteration": iterations,
        "saved_data": "statistic" if is_statistic else "tensor", "input_output": 0,
        "kernels": [kernel_of(glob) for glob in sites], "support_device": list(range(8)),
    }  # fmt: skip
    end_to_end: dict[str, Any] = {"enable": True, "trans_flag": True}
    if is_statistic:
        common["statistic_category"] = [
            "max", "min", "avg", "count", "zero count", "nan count", "negative inf count", "positive inf count",
            "l2norm",
        ]  # fmt: skip
        end_to_end["stat_calc_mode"] = "host"
    return json.dumps({"common_dump_settings": common, "e2e_dump_settings": end_to_end}, indent=1)


def kernel_of(glob: str) -> str:
    """`layers.*.fc` as MindSpore's regular expression on full names of operators.

    A cell is `name-Class` in them, below what wraps the network: `Default/network-WithLossCell/_backbone-Net/...`.
    """
    parts = [_part(part) for part in glob.split(".") if part]
    return "name-regex((.*/)?" + "/".join(f"{part}-{_NAME_PART}" for part in parts) + "/.*)"


def _part(part: str) -> str:
    text = "".join({"*": _NAME_PART, "?": "[^/]"}.get(c, c if c in "[]" else re.escape(c)) for c in part)
    return text.replace("[!", "[^")
