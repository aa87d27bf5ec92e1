"""record/pandas_left_out.py, in processes of its own: what pyarrow has seen once it keeps."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pandas")


def told(program: str, stdin: str = "") -> str:
    ended = subprocess.run([sys.executable, "-c", program], input=stdin, capture_output=True, text=True, check=True)
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


def test_pandas_that_comes_later_is_known_at_once():
    program = """
import pyarrow as pa
from importlib.util import find_spec
from hypocenter.record.pandas_left_out import leave_pandas_out
leave_pandas_out()
table = pa.table({"a": [1.0, None]})
assert find_spec("pandas") is not None and find_spec("pandas.testing") is not None
import pandas
found = pa.array(pandas.Series([1.0, None])).null_count, type(table.to_pandas()).__name__
print(*found, pa.table(pandas.DataFrame({"a": [2]})).num_rows)
"""
    assert told(program) == "1 DataFrame 1"


def test_whoever_reads_many_recordings_waits_for_pandas_once():
    program = """
import sys
from hypocenter.record.pandas_left_out import leave_pandas_out
for _ in range(5):
    leave_pandas_out()
print(sum(type(finder).__name__ == "PostImportFinder" for finder in sys.meta_path))
"""
    assert told(program) == "1"


def test_a_table_becomes_a_frame_without_its_import():
    program = """
import pyarrow as pa
from hypocenter.record.pandas_left_out import leave_pandas_out
leave_pandas_out()
print(len(pa.table({"a": [1, 2]}).to_pandas()))
"""
    assert told(program) == "2"


def test_another_thread_can_import_it_meanwhile():
    program = """
import sys, threading, pyarrow as pa
from hypocenter.record import pandas_left_out
threads = []

class Asked:  # while pyarrow looks
    def find_spec(self, name, path=None, target=None):
        if name == "pandas" and not threads:
            threads.append(threading.Thread(target=__import__, args=("pandas",)))
            threads[0].start()

original = pandas_left_out._NotThere
pandas_left_out._NotThere = lambda: (sys.meta_path.insert(0, Asked()), original())[1]
pandas_left_out.leave_pandas_out()
threads and threads[0].join()
import pandas
print(pa.array(pandas.Series([1.0, None])).null_count)
"""
    assert told(program) == "1"


def test_a_training_process_does_not_import_it(tmp_path):
    program = """
import sys
sys.argv = ["train.py"]
import hypocenter, torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
with hypocenter.watch(model, optimizer, out=sys.stdin.readline()):
    for _ in range(600):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
print("pandas" in sys.modules)
"""
    assert told(program, stdin=str(tmp_path / "run")) == "False"


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
