"""What a diagnosis of the simulated job has to say, and must not say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.job_of_512.job import Job


def complaints(job: Job, diagnosis: Mapping[str, Any], codes: Sequence[str]) -> Iterator[str]:
    """Everything that is wrong with a diagnosis (diagnosis.json, decoded).

    Args:
        job: the job that was recorded.
        diagnosis: what was said of it.
        codes: of the rules that were asked: those that do not exist yet are not missed.
    """
    faults, findings = job.faults, diagnosis["findings"]
    alarms = [f for f in findings if f["severity"] != "note"]
    nonfinite = [f for f in alarms if f["kind"] == "nonfinite"]
    named = [f for f in nonfinite if f["step"] == faults.nan_step and faults.nan_param in (f["param"], f["site"])]
    if not named:
        yield f"no finding names {faults.nan_param} at step {faults.nan_step}"
    if len(nonfinite) > 1:
        yield f"{len(nonfinite)} findings of one NaN: {[(f['code'], f['step'], f['rank']) for f in nonfinite[:8]]}"
    if "HC313" in codes and not any(f["rank"] == faults.nan_rank for f in named):
        yield f"rank {faults.nan_rank} is not blamed for the NaN"
    drifted = [f for f in alarms if f["code"] == "HC301" and faults.drift_param in (f["param"], f["site"])]
    seen = -(-faults.drift_step // job.digest_every) * job.digest_every  # the first step with digests from there on
    if "HC301" in codes and not any(f["step"] == seen and f["rank"] == faults.drift_rank for f in drifted):
        yield f"rank {faults.drift_rank} is not said to have drifted at step {seen}"
    told = "; ".join([*diagnosis["notes"], *(" ".join((f["title"], *f["why"])) for f in findings)])
    if f"left no recording: {faults.missing_rank}" not in told:
        yield f"rank {faults.missing_rank} is not said to be missing"
    if f"rank-{faults.cut_rank:05d}" not in told:
        yield f"rank {faults.cut_rank} is not said to be cut"
    blamed = {faults.nan_rank, faults.drift_rank, faults.missing_rank, faults.cut_rank}
    for finding in alarms:
        if finding["kind"] != "nonfinite" and finding["rank"] not in blamed:
            yield f"rank {finding['rank']} is accused: {finding['code']} {finding['title']}"
    longest = max((len(text) for f in findings for text in (*f["why"], *f["then"])), default=0)
    if longest > 400:
        yield f"a sentence has {longest} characters"
