"""What DeepSpeed says of its operators, printed as one line of JSON: `python -m hypocenter.examine.deepspeed_facts`.

The same questions that `ds_report` asks: is an operator built ahead, and could it be built here?
"""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any


def main() -> None:
    """Print the facts; a DeepSpeed that cannot be imported is a fact too."""
    noise = io.StringIO()
    with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
        found = facts()
    print(json.dumps(found), flush=True)


def facts() -> dict[str, Any]:
    """Return `{"status": "imported", "version", "accelerator", "ops": {name: {"built", "compatible", ...}}}`."""
    try:
        import deepspeed  # type: ignore[import-not-found, unused-ignore]
        from deepspeed.accelerator import get_accelerator  # type: ignore[import-not-found, unused-ignore]
        from deepspeed.git_version_info import installed_ops  # type: ignore[import-not-found, unused-ignore]
        from deepspeed.ops.op_builder.all_ops import ALL_OPS  # type: ignore[import-not-found, unused-ignore]

        accelerator = str(getattr(get_accelerator(), "_name", ""))
    except Exception as error:  # whatever a half-built installation raises
        return {"status": "failed", "error": f"{type(error).__name__}: {error}".splitlines()[0]}
    ops = {name: _of(builder, bool(installed_ops.get(name))) for name, builder in ALL_OPS.items()}
    ops.pop("deepspeed_not_implemented", None)  # a placeholder of backends without operators
    return {"status": "imported", "version": str(deepspeed.__version__), "accelerator": accelerator, "ops": ops}


def _of(builder: Any, built: bool) -> dict[str, Any]:
    noise = io.StringIO()
    try:
        with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
            compatible, why = bool(builder.is_compatible(True)), ""
    except Exception as error:  # a builder that needs CUDA raises where there is none
        compatible, why = False, str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if not compatible and not why:
        why = next((line.strip() for line in noise.getvalue().splitlines() if line.strip()), "")
    return {"built": built, "compatible": compatible, "variable": str(getattr(builder, "BUILD_VAR", "")), "why": why}


if __name__ == "__main__":
    main()
