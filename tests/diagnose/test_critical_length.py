"""What an overflowed reduction says about the length at which it overflows."""

from __future__ import annotations

import pytest

from hypocenter.diagnose.evidence import Evidence, OpFacts, Rerun, TensorFacts
from hypocenter.diagnose.verdicts import judge
from hypocenter.nouns import Source, Summary


def evidence(
    name: str, *inputs: tuple[tuple[int, ...], Summary], shape: tuple[int, ...], actual: float, text: str = ""
) -> Evidence:
    """A reduction of float16 inputs whose float64 result is `actual`."""
    origin = OpFacts(
        index=7, op=name, phase="forward", site="attn", source=Source(file="m.py", line=1, text=text),
        inputs=tuple(
            TensorFacts(name=f"in[{i}]", dtype="float16", shape=s, summary=x) for i, (s, x) in enumerate(inputs)
        ),
        outputs=(TensorFacts(name="out[0]", dtype="float16", shape=shape, summary=Summary(n=4, n_hist=4, n_posinf=4)),),
    )  # fmt: skip
    rerun = Rerun(ran=True, finite=True, absmax=actual)
    return Evidence(
        step=3, replayed=True, reproduced=True, origin=origin, limit=65504.0, float64=rerun, chips=("+inf ×4",)
    )


def terms(n: int, low: float, high: float, mean: float, rms: float) -> Summary:
    return Summary(n=n, n_hist=n, min=low, max=high, absmax=max(-low, high), sum=mean * n, sumsq=rms * rms * n)


MIXED = ((4, 4096), terms(4 * 4096, -90.0, 90.0, 20.0, 30.0))
POSITIVE = ((4, 4096), terms(4 * 4096, 0.0, 90.0, 20.0, 30.0))


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (evidence("aten.sum.dim_IntList", POSITIVE, shape=(4,), actual=81920.0),
         "4,096 terms of mean 20 are added; it overflows from about 3,275 terms on"),
        (evidence("aten.sum.dim_IntList", MIXED, shape=(4,), actual=81920.0),
         "4,096 terms of rms 30 are added; it cannot overflow below 2,183 terms"),
        (evidence("aten.linalg_vector_norm.default", ((4, 4096), terms(4 * 4096, -2000.0, 2000.0, 0.0, 1100.0)),
                  shape=(4,), actual=70400.0),
         "4,096 terms of rms 1100 go into it; it overflows from about 3,546 terms on"),
        (evidence("aten.bmm.default", ((1, 2, 8192), terms(16384, 1.0, 4.0, 3.0, 3.1)),
                  ((1, 8192, 2), terms(16384, 1.0, 4.0, 3.0, 3.1)), shape=(1, 2, 2), actual=73728.0,
                  text='kv = torch.einsum("bnd,bnm->bdm", k, v)'),
         "8,192 products are added; in proportion to them it overflows from about 7,278 on"),
    ],
)  # fmt: skip
def test_the_bound_that_holds_is_told(case: Evidence, said: str) -> None:
    verdict = judge(case)

    assert verdict.cause == "accumulation-overflow"
    assert said in verdict.why


def test_a_sum_of_one_term_says_nothing_of_a_length() -> None:
    alone = evidence("aten.sum.default", ((1,), terms(1, 7e4, 7e4, 7e4, 7e4)), shape=(), actual=7e4)

    assert not any("terms of" in line for line in judge(alone).why)
