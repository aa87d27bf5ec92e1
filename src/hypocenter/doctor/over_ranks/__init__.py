"""What the reports of all ranks say together: one file for each thing that is judged, each a function of plain data.

In: `{"reports": [...], "roster": ..., "silent": ..., ...}` as `hypocenter.examine` sends it. Out: checks.
"""

from __future__ import annotations

from hypocenter.doctor.over_ranks.judgement import judged

__all__ = ["judged"]
