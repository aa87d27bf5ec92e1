#!/usr/bin/env python3
"""Stands for `ssh`: of `ssh -N -L PORT:HOST:PORT LOGIN`, a tunnel, and of `ssh LOGIN hostname` the words are read.

Every machine that `hostname -I` is asked of is this one.
"""

import re
import sys

words = sys.argv[1:]
if words[0] == "-N":
    shell, option, tunnel, login = words
    assert option == "-L"
    assert re.fullmatch(r"\d+:localhost:\d+", tunnel), tunnel
else:
    login, *command = words[2:] if words[0] == "-o" else words
    assert command in (["hostname"], ["hostname", "-I"]), command
    print("127.0.0.1")
assert re.fullmatch(r"[\w.-]+", login), login
