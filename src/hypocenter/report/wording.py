"""The sentences that every rendering shares: numbers, counts, places, confidences. Pure, no markup, no colour."""

from __future__ import annotations

import difflib
import glob
import math
import shlex
from collections.abc import Sequence

from rich.cells import cell_len

from hypocenter.axes import AXES
from hypocenter.diagnose.numbers import short
from hypocenter.formats import LARGEST
from hypocenter.in_words import counted as count
from hypocenter.nouns import Coords, Finding, Remedy, Source, Summary

LONGEST_NAME = 200  # characters of one name or line; longer ones are cut in the middle, and say so
NOT_RECORDED = "not recorded"  # what stands in the place of a number that nobody measured: missing is not zero
LONGEST_SENTENCE = 2000  # characters of one `why` or `then`; more is cut at the end, and says so
_OF_BATCHES = {"digest": "values", "field": "sample"}
_INVISIBLE = frozenset(range(0x202A, 0x202F)) | frozenset(range(0x2066, 0x206A)) | {0x2028, 0x2029, 0xFEFF, 0x200F}


def clean(text: str, at_most: int = LONGEST_NAME) -> str:
    """Return text safe for a screen: one line, control and direction characters spelled out, the middle cut if long."""
    if not (text.isascii() and text.isprintable()):
        text = "".join(_visible(character) for character in text)
    return cut_middle(text, at_most)


def port_name(phase: str, name: str) -> str:
    """Return the name of a port on a screen; of a batch it says whether all values were looked at, or a sample."""
    return _OF_BATCHES.get(name, clean(name)) if phase == "data" else clean(name)


def sentence(text: str) -> str:
    """Return a `why` or `then` on one line, cut at the end if very long."""
    flat = clean(" ".join(text.split()), at_most=1 << 30)
    if len(flat) <= LONGEST_SENTENCE:
        return flat
    return f"{flat[:LONGEST_SENTENCE]}… ({len(flat) - LONGEST_SENTENCE:,} more characters)"


def cut_middle(text: str, at_most: int) -> str:
    """Return the text, or its beginning and end around the number of characters left out."""
    if len(text) <= at_most:
        return text
    tail = at_most // 2
    head = at_most - tail
    return f"{text[:head]}…({len(text) - head - tail:,} characters)…{text[-tail:]}"


def shortened(name: str, room: int, mark: str = "…") -> str:
    """Cut a name in its middle to `room` columns: both ends tell it from others, the last one more."""
    if cell_len(name) <= room:
        return name
    n_head, kept = max(room - len(mark), 2) // 3, room - len(mark)
    head = tail = ""
    for character in name:
        if cell_len(head + character) > n_head:
            break
        head += character
    for character in reversed(name):
        if cell_len(character + tail) > kept - cell_len(head):
            break
        tail = character + tail
    return head + mark + tail


def _visible(character: str) -> str:
    code = ord(character)
    if character == "\t":
        return "    "
    if code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code in _INVISIBLE else character


def number(value: float | None) -> str:
    """Return a measured value as `diagnose` writes it: 65504, 1.1e5, +inf, NaN; `unknown` for none."""
    return "unknown" if value is None else short(value)


def byte_size(n_bytes: int) -> str:
    """Return a size as text: `812 B`, `1.4 KiB`, `3.2 MiB`, `1.0 GiB`."""
    size = float(n_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def shape(dims: Sequence[int]) -> str:
    """Return a shape as text: `64×512×512`; `scalar` for no dimension."""
    return "×".join(str(dim) for dim in dims) or "scalar"


def chips(summary: Summary, *, is_counted: bool = True) -> tuple[str, ...]:
    """Return what stands out among the values, non-finite first: `+inf ×12`, `NaN ×4,096`, `0 ×9,120`.

    Where elements that are not finite were not counted the number is left out: `NaN`.

    Args:
        is_counted: of a sum over several readings, whether `counts_nonfinite` holds for each of them.
    """
    exact = [("NaN", summary.n_nan), ("+inf", summary.n_posinf), ("-inf", summary.n_neginf)]
    has_counts = is_counted and counts_nonfinite(summary)
    out = [f"{name} ×{n:,}" if has_counts else name for name, n in exact if n]
    for name, n in (("0", summary.n_zero), ("subnormal", summary.n_subnormal)):
        if n and summary.n_hist == summary.n:
            out.append(f"{name} ×{n:,}")
        elif n:
            out.append(f"{name} ≈{100 * n / summary.n_hist:.0f} %")
    return tuple(out)


def is_bad_chip(chip: str) -> bool:
    """Return whether the chip counts values that are not finite."""
    return chip.startswith(("NaN", "+inf", "-inf", "inf"))


def magnitude(summary: Summary) -> str:
    """Return the largest finite magnitude; `norm 0.12` where only that was recorded, `-` where nothing is finite.

    `not recorded` where the norm alone was to be recorded and was not finite: what the elements were is not known.
    """
    if summary.n and summary.n_nonfinite == summary.n:
        return "-"
    if has_extremes(summary) or summary.n_hist:
        return number(summary.absmax)
    return NOT_RECORDED if summary.n_nonfinite and not summary.sumsq else f"norm {number(math.sqrt(summary.sumsq))}"


def counts_nonfinite(summary: Summary) -> bool:
    """Return whether NaN and infinities were counted: a norm that is not finite only says that there are some."""
    return has_extremes(summary) or summary.n_hist > 0 or summary.n == summary.n_nonfinite


def has_extremes(summary: Summary) -> bool:
    """Return whether anything is known of how large the finite elements are, each by itself."""
    return summary.absmax > 0 or summary.min is not None or summary.max is not None


def headroom_bits(absmax: float, dtype: str) -> float | None:
    """Return log2(largest value of the format / absmax), the doublings left before overflow; None: no limit."""
    limit = LARGEST.get(dtype)
    if limit is None or absmax <= 0 or not math.isfinite(absmax):
        return None
    return math.log2(limit) - math.log2(absmax)


def headroom(summary: Summary, dtype: str) -> str:
    """Return `5.1 bits`, `none` when values are not finite, empty when the format has no limit or all are zero."""
    if summary.n_nonfinite:
        return "none"
    bits = headroom_bits(summary.absmax, dtype)
    return "" if bits is None else f"{bits:.1f} bits"


def source_place(source: Source) -> str:
    """Return a place as editors and terminals recognise it: `model.py:216`."""
    return f"{clean(source.file)}:{source.line}"


def where(finding: Finding, n_ranks: int) -> str:
    """Name the place: `step 12, micro-batch 0, rank 3 of 8 (tp 1, dp 0), encoder.wo out[0] (forward)`."""
    rank = f"rank {finding.rank} of {n_ranks}" if n_ranks > 1 else ""
    layout = coords(finding.coords)
    parts = [f"step {finding.step}", f"micro-batch {finding.microbatch}", f"{rank} ({layout})" if layout else rank]
    return ", ".join(part for part in [*parts, subject(finding)] if part)


def coords(place: Coords) -> str:
    """Name the coordinates, `tp 1, dp 0`, of only those axes that exist."""
    return ", ".join(f"{axis} {index}" for axis in AXES if (index := getattr(place, axis)) is not None)


def subject(finding: Finding) -> str:
    """Name what it happened to: `encoder.wo out[0] (forward)`, or the parameter."""
    name = site(finding)
    port = clean(finding.port or "")
    if not name and not port:
        return finding.phase or ""
    phase = f"({finding.phase})" if finding.phase else ""
    return " ".join(part for part in (name, port, phase) if part)


def site(finding: Finding) -> str:
    """Return the site's name, `the model itself` for the root module, the parameter when there is no site."""
    if finding.site is None:
        return clean(finding.param or "")
    return clean(finding.site) or "the model itself"


def cause(finding: Finding) -> str:
    """Name the cause and how sure it is: `format-overflow (proven by replay)`, `unknown (possible)`."""
    how = " by replay" if finding.confidence == "proven" and finding.bundle else ""
    return f"{clean(finding.cause)} ({finding.confidence}{how})"


def limit(finding: Finding) -> str:
    """Return `65504, actual 1.1e+05`; empty where there are no two numbers, or two that read alike."""
    if finding.limit is None or finding.actual is None or number(finding.limit) == number(finding.actual):
        return ""
    return f"{number(finding.limit)}, actual {number(finding.actual)}"


def sample(finding: Finding, at_most: int = 12) -> str:
    """Name the samples, `row 2 of the batch (dataset[1234])`, `rows 2, 5 of the batch`; empty when none is known."""
    if not finding.samples:
        return ""
    shown = ", ".join(str(row) for row in finding.samples[:at_most])
    more = f" and {len(finding.samples) - at_most:,} more" if len(finding.samples) > at_most else ""
    indices = ", ".join(str(index) for index in finding.dataset_indices[:at_most])
    where = f" (dataset[{indices}{', …' if more else ''}])" if indices else ""
    return f"row{'s' if len(finding.samples) > 1 else ''} {shown}{more} of the batch{where}"


def remedy(advice: Remedy) -> str:
    """Say what to change, and whether a replay with it was finite."""
    targets = ", ".join(clean(target) for target in advice.targets)
    text = sentence(advice.text) or f"{advice.action} {targets}".strip()
    if "verified" in text:
        return text
    return f"{text} (verified by replay)" if advice.verified else f"{text} (not verified)"


def command(*words: str) -> str:
    """Return a command line to type, its words quoted where a shell needs it."""
    return "".join(_visible(character) for character in shlex.join(("hypocenter", *words)))


def site_glob(name: str) -> str:
    """Return a pattern for `--site` that finds this site and can be typed: `?` for control characters, `*` at last."""
    typed = "".join("?" if _visible(character) != character else character for character in glob.escape(name))
    return typed if len(typed) <= LONGEST_NAME else typed[:LONGEST_NAME] + "*"


def tally(n_errors: int, n_warnings: int) -> str:
    """Return the counts: `1 error, 0 warnings`."""
    return f"{count(n_errors, 'error')}, {count(n_warnings, 'warning')}"


def nearest(typed: str, known: Sequence[str]) -> str:
    """Return `did you mean 'html'?`, or where to find all names."""
    lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(typed.lower(), list(lower), n=1, cutoff=0.5)
    return f"did you mean {lower[close[0]]!r}?" if close else "see them all with `hypocenter list`"
