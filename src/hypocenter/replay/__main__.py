"""`python -m hypocenter.replay BUNDLE`: show a recorded failure again, in this fresh process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hypocenter.errors import BundleError, HypocenterError, MissingFrameworkError


def main(argument: str) -> None:
    """Check the bundle and run it. Exits 0 if the failure shows again, 1 if it does not, 2 without torch, 4 for a bad
    bundle.
    """
    _require_torch()
    from hypocenter.replay.bundle import FORMAT, NAMESPACES, OP_FILE, SCRIPT_FILE, script

    folder = Path(argument)
    path = folder / OP_FILE
    if not path.is_file():
        inside = sorted(file.parent for file in folder.glob(f"rank-*/bundles/*/{OP_FILE}"))
        raise BundleError(
            "this is no bundle that can be replayed",
            where=str(folder),
            why=f"it has no {OP_FILE}",
            fix=f"hypocenter replay {inside[0]}" if inside else "give a folder below RUN/rank-*/bundles/",
        )
    try:
        op = json.loads(path.read_text(encoding="utf-8"))
        known = op["format"] <= FORMAT and op["op"].split(".")[0] in NAMESPACES and op["op"].count(".") == 2
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise BundleError("the bundle cannot be read", where=str(path), why=str(error)) from error
    if not known:
        raise BundleError(
            "the bundle is of a newer format, or asks for an op outside aten", where=str(path), why=f"op {op['op']!r}"
        )
    require_harmless(op["op"], path)
    # our own text of the script, never the one that lies in the bundle: a stranger may have written that
    text = script("replay of a bundle", f"in {folder}")
    exec(compile(text, SCRIPT_FILE, "exec"), {"__file__": str(folder / SCRIPT_FILE), "__name__": "__main__"})


def _require_torch() -> None:
    try:
        import torch as torch
    except Exception as error:  # an installation that is broken raises what it likes
        raise MissingFrameworkError(
            "a bundle is replayed with torch, and this Python cannot import it", where=sys.executable,
            why=(str(error) or type(error).__name__).splitlines()[0],
            fix="use the Python that has it: PYTHON -m hypocenter replay BUNDLE",
        ) from error  # fmt: skip


def require_harmless(name: str, path: Path) -> None:
    """Refuse an op that is no computation: `aten.save` writes a file, and `aten.from_file` maps any into memory."""
    import torch

    namespace, op, overload = name.split(".")
    try:
        schema = getattr(getattr(getattr(torch.ops, namespace), op), overload)._schema
    except AttributeError as error:
        raise BundleError("this torch has no such op", where=str(path), why=f"op {name!r}") from error
    if not schema.returns or any("file" in argument.name for argument in schema.arguments):
        raise BundleError(
            "the bundle asks for an op that is no computation: not run", where=str(path), why=f"op {name!r}"
        )


def _say(problem: HypocenterError, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({name: getattr(problem, name) for name in ("slug", "what", "where", "why", "fix")}))
    else:
        print(problem, file=sys.stderr)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--json"]
    try:
        if len(words) != 1:
            raise BundleError("one bundle is wanted", fix="hypocenter replay RUN/rank-00000/bundles/step-…")
        main(words[0])
    except HypocenterError as problem:
        _say(problem, as_json="--json" in sys.argv)
        sys.exit(problem.exit_code)
