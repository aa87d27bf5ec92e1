"""What reading a large job costs: seconds and peak memory of `check` and `report` on a recording of 512 ranks.

`python -m bench.job_of_512` writes the recording with the real writer from simulated readings, with faults whose
answers are known, and reads it in a process of its own.
"""
