"""Vendored files are the published ones, noted with version, licence and hash."""

from __future__ import annotations

import hashlib
import re
from importlib import resources

from hypocenter.report import page


def test_every_vendored_script_has_the_hash_that_is_noted() -> None:
    folder = resources.files(page).joinpath("vendor")
    noted = dict(re.findall(r"\| `([^`]+)` \|.*`([0-9a-f]{64})` \|", folder.joinpath("VENDOR.md").read_text()))

    present = {
        f.name: hashlib.sha256(f.read_bytes()).hexdigest()
        for f in folder.iterdir()
        if ".min." in f.name or ".umd." in f.name
    }

    assert present == noted
    assert len(noted) == 3
