"""The kernel of attention changes nothing but rounding.

What it means
    Fused kernels of attention compute the same as the formula written out. Where they do not, a mask is read in another
    way (a row that is fully masked, a boolean mask of the wrong sense), heads are laid out otherwise, or a kernel is
    wrong for this shape.

How it is decided
    The kernels that torch chooses for `scaled_dot_product_attention` against the formula written out (`attention=math`;
    `flash`, `efficient` and `cudnn` can be given too). Every value may differ by rounding, whose size replays measure.
    Dropout is off in both runs: kernels draw it otherwise.

What to do
    Look at the mask that the named module gives.

When it is wrong
    Kernels that a program calls by itself (flash_attn, xformers) stay as they are, and so does one that it chooses by
    `sdpa_kernel`.
"""

from __future__ import annotations

from dataclasses import replace

from hypocenter.errors import ConfigError
from hypocenter.twins.answer import Twin
from hypocenter.twins.change import Asked, change
from hypocenter.twins.judging import answer, judge
from hypocenter.twins.options import recording
from hypocenter.twins.runs import NotApplicableError

_KERNELS = ("math", "flash", "efficient", "cudnn")


@change("attention", order=9, values="KERNEL")
def attention(asked: Asked) -> Twin:
    """Compare torch's own choice of an attention kernel with another kernel."""
    kernel = asked.value or "math"
    if kernel not in _KERNELS:
        raise ConfigError(
            f"no kernel is called {kernel!r}", where="attention=KERNEL", fix=f"one of {', '.join(_KERNELS)}"
        )
    calm, make = replace(recording(asked, asked.steps, calibrated=True), no_dropout=True), asked.runs.make
    chosen = replace(calm, change=("attention=own",))
    own = make("own-kernels", chosen, words=asked.first_words).recorded()
    mine = own.noted.get("attention", [])
    if not mine:
        raise NotApplicableError(
            "the program does not call scaled_dot_product_attention", where="hypocenter twin attention"
        )
    other = make(
        "other-kernel", replace(calm, change=(f"attention={kernel}",), calibrate="never"), words=asked.second_words
    ).recorded()
    theirs = other.noted.get("attention", [])
    if mine == theirs:
        raise NotApplicableError(
            "torch takes the same kernel in both runs",
            where=f"attention={kernel}",
            why=", ".join(line for line in mine if line.startswith("kernel")),
            fix="give another one: attention=flash",
        )
    again = make("own-kernels-again", chosen, words=asked.first_words)
    judged = judge(own, again, other, is_exact=False)
    kernels = " and ".join(line.removeprefix("kernel ") for line in mine if line.startswith("kernel ")) or "its own"
    found = answer(judged, (own, again, other), f"with attention by {kernel} in place of {kernels}")
    return replace(found, cause="kernel-dependence", confidence="possible") if found.status == "differs" else found
