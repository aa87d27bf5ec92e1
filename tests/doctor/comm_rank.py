"""One rank under torchrun: examines the job; the rank that speaks prints what was found, the others nothing."""

import json
import sys
from dataclasses import asdict

from hypocenter.doctor.communication import examine_job, speaks

examined = examine_job(timeout_s=float(sys.argv[1]))
if speaks(examined):
    checks = [asdict(check) for check in examined.checks]
    print(json.dumps({"checks": checks, "missing": examined.missing, "n_ranks": examined.n_ranks}), flush=True)
sys.exit(any(check.status == "problem" for check in examined.checks))
