"""`python -m hypocenter`: the same as the command `hypocenter`."""

from __future__ import annotations

import sys

from hypocenter.cli import main

if __name__ == "__main__":
    sys.exit(main())
