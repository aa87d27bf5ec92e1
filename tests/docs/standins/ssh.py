#!/usr/bin/env python3
"""Stands for `ssh -N -L PORT:HOST:PORT LOGIN`, a tunnel between two machines: its words are read, no more."""

import re
import sys

shell, option, tunnel, login = sys.argv[1:]
assert (shell, option) == ("-N", "-L")
assert re.fullmatch(r"\d+:localhost:\d+", tunnel), tunnel
assert re.fullmatch(r"[\w.-]+", login), login
