"""What a first day on a GPU checks: one file of `checks` = one check, each of it runs `train.py` with and without us.

A check has a docstring whose first line says what it does, `NEEDS` (kinds of device it can run on), and
`run(device, folder)`, which gives rows. Nothing of the test suite is needed, and no package beside Hypocenter's own.
"""
