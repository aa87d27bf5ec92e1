"""What reading the recording of a frontier job costs: a real run of 8 ranks, rewritten to many, with faults planted.

`python -m bench.many_ranks` records the 8 ranks with the real recorder, copies their rows to as many ranks and steps as
are asked for, plants six faults whose answers are known, and measures `hypocenter check` in processes of its own.
"""
