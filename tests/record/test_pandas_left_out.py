"""record/pandas_left_out.py, in processes of its own: what pyarrow has seen once it keeps."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pandas")


def told(program: str) -> str:
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return ended.stdout.strip()


def test_arrays_are_made_without_pandas_which_can_still_be_imported():
    program = """
import sys, numpy as np, pyarrow as pa
{}
found = pa.array(np.arange(3)).to_pylist(), pa.array(["a"]).to_pylist(), pa.scalar(1).as_py(), "pandas" in sys.modules
import pandas
print(*found, pandas.Series([7])[0])
"""
    left_out = "from hypocenter.record.pandas_left_out import leave_pandas_out; leave_pandas_out()"
    assert told(program.format(left_out)) == "[0, 1, 2] ['a'] 1 False 7"
    assert told(program.format("")) == "[0, 1, 2] ['a'] 1 True 7"


def test_pandas_that_is_there_stays():
    program = """
import pandas, pyarrow as pa
from hypocenter.record.pandas_left_out import leave_pandas_out
leave_pandas_out()
print(pa.array(pandas.Series([1.0, None])).null_count)
"""
    assert told(program) == "1"


def test_check_does_not_import_it():
    program = """
import sys
from hypocenter.cli import main
sys.argv = ["hypocenter", "check", "/nowhere"]
main()
import pyarrow as pa
pa.array([1])
print("pandas" in sys.modules)
"""
    assert told(program).endswith("False")
