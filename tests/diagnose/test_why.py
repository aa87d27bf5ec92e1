"""Sentences of evidence."""

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, Rerun


def test_what_was_done_again_in_part_or_not_at_all_is_said():
    evidence = Evidence(
        float64=Rerun(ran=True, finite=True, part="67 of 4,096 rows"),
        cpu=Rerun(why_not="not done again on the CPU: 2.1e12 FLOPs, more than 15 s allow"),
    )

    lines = why.common(evidence)

    assert "in float64 67 of 4,096 rows of the result were done again, those with bad elements first" in lines
    assert "not done again on the CPU: 2.1e12 FLOPs, more than 15 s allow" in lines
