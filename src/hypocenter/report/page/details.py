"""What a page tells of a finding beside its words: lines around it, modules it is inside of, tensors, the cure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.diagnose.evidence import Alternative, Evidence, TensorFacts
from hypocenter.nouns import Finding, Source
from hypocenter.report import cure, wording

AROUND = 3  # lines before and after the one that went wrong
_MOST_BYTES = 4 << 20  # of a source file
_MOST_LINES = 400  # of a diff


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLine:
    """One tensor that was an input or output of the operator."""

    name: str
    origin: str
    dtype: str
    shape: str
    magnitude: str
    chips: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """What is known of one finding; empty where nothing is."""

    before: tuple[str, ...] = ()  # source lines, as they are in the file now
    after: tuple[str, ...] = ()
    first_line: int = 0  # number of the first of `before`
    indent: int = 0  # of the line itself, where lines around it are shown
    stack: tuple[tuple[str, str, str], ...] = ()  # (file:line, function, text) of what called it, the outermost first
    inside: tuple[str, ...] = ()  # modules, the outermost first: "layers.3 (Block)"
    tensors: tuple[TensorLine, ...] = ()
    patch: tuple[tuple[str, str], ...] = ()  # (class of the line, the line)
    patch_note: str = ""
    tried: tuple[tuple[str, ...], ...] = ()  # a heading, then a row each


def details_of(
    finding: Finding, evidence: Evidence | None, classes: Mapping[str, str], *, reads_source: bool = True
) -> Details:
    """Return what is known of this finding.

    Args:
        finding: of the diagnosis.
        evidence: of its bundle.
        classes: of modules by their path.
        reads_source: whether the program's own files may be read, for lines around the one that went wrong.
    """
    before, after, indent = around(finding.source) if finding.source and reads_source else ((), (), 0)
    first = finding.source.line - len(before) if finding.source else 0
    origin = evidence.origin if evidence is not None else None
    tensors = [*origin.inputs, *origin.outputs] if origin is not None else []
    found = evidence.cure if evidence is not None and finding.cause == "format-overflow" else None
    return Details(
        before=before,
        after=after,
        first_line=first,
        indent=indent,
        stack=tuple(map(_call, origin.stack)) if origin is not None else (),
        inside=_inside(finding.site, classes),
        tensors=tuple(map(_tensor, tensors)),
        patch=_patch(found.patch) if found is not None else (),
        patch_note=_patch_note(found.patch_verified, found.patch_note) if found is not None and found.patch else "",
        tried=_tried(found.alternatives) if found is not None and found.alternatives else (),
    )


def around(source: Source) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Return the lines before and after without their common indent, and the indent of the line itself.

    Nothing where this very line of Python is no longer where it was: what else a path names is not read.
    """
    path = Path(source.file)
    try:
        if path.suffix != ".py" or not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return (), (), 0
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return (), (), 0
    at = source.line - 1
    if not source.text.strip() or not 0 <= at < len(lines) or lines[at].strip() != source.text.strip():
        return (), (), 0
    near = lines[max(at - AROUND, 0) : at + 1 + AROUND]
    shown = [wording.clean(line, 300) for line in dedent("\n".join(near)).split("\n")]
    n_before = min(at, AROUND)
    this = shown[n_before]
    return tuple(shown[:n_before]), tuple(shown[n_before + 1 :]), len(this) - len(this.lstrip())


def classes_of(table: pa.Table) -> dict[str, str]:
    """Return the class of each module by its path, as far as rows of modules tell."""
    rows = table.select(["site", "module"]).filter(pc.not_equal(table["module"], ""))
    unique = rows.group_by(["site", "module"], use_threads=False).aggregate([])
    return dict(zip(unique["site"].to_pylist(), unique["module"].to_pylist(), strict=True))


def _inside(site: str | None, classes: Mapping[str, str]) -> tuple[str, ...]:
    """Return those of a module's ancestors that are known, and the module itself, in words."""
    if not site or site not in classes:
        return ()
    parts = site.split(".")
    paths = ["", *(".".join(parts[: n + 1]) for n in range(len(parts)))]
    return tuple(
        wording.clean(f"{path} ({classes[path]})".strip()) if path else wording.clean(classes[path])
        for path in paths
        if path in classes
    )


def _call(source: Source) -> tuple[str, str, str]:
    return wording.source_place(source), wording.clean(source.function), wording.clean(source.text.strip())


def _tensor(facts: TensorFacts) -> TensorLine:
    return TensorLine(
        name=wording.clean(facts.name),
        origin=wording.clean(facts.origin),
        dtype=wording.clean(facts.dtype),
        shape=wording.shape(facts.shape),
        magnitude=wording.magnitude(facts.summary),
        chips=wording.chips(facts.summary),
    )


def _patch(text: str) -> tuple[tuple[str, str], ...]:
    kinds = {"+": "added", "-": "removed", "@": "place"}
    lines = [wording.clean(line, 300) for line in text.splitlines()[:_MOST_LINES]]
    return tuple(("place" if line[:3] in ("+++", "---") else kinds.get(line[:1], ""), line) for line in lines)


def _patch_note(is_verified: bool, note: str) -> str:
    how = "the step was replayed with it and is finite" if is_verified else "not replayed"
    return f"{how}; read it before you apply it" + (f"; {wording.sentence(note)}" if note else "")


def _tried(alternatives: Sequence[Alternative]) -> tuple[tuple[str, ...], ...]:
    return cure.HEADING, *map(cure.row, alternatives)
