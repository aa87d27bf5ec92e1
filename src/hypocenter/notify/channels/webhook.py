"""`https://…`: the alert as JSON in a POST request."""

from __future__ import annotations

from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from hypocenter.notify.alert import Alert

prefixes = ("https://", "http://")
about = "POST the alert as JSON to this address"


class _NoRedirect(HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirection: the alert was meant for this address alone."""


def check(target: str) -> str:
    """Return what is wrong with an address; empty if nothing is."""
    try:
        return "" if urlsplit(target).hostname and urlsplit(target).port != 0 else "it names no host"
    except ValueError as error:
        return str(error).lower()


def send(target: str, alert: Alert, timeout_s: float) -> None:
    """Post the alert as JSON. Raises OSError: the address cannot be reached, or answers with an error."""
    post(target, alert.json, timeout_s)


def post(address: str, data: bytes, timeout_s: float) -> None:
    """Post JSON data to an address. Raises OSError: it cannot be reached, or answers with an error."""
    headers = {"Content-Type": "application/json", "User-Agent": "hypocenter"}
    request = Request(address, data=data, headers=headers, method="POST")
    try:
        with build_opener(_NoRedirect).open(request, timeout=timeout_s) as answer:
            answer.read(1024)
    except HTTPError as error:
        error.close()
        raise OSError(f"it answers {error.code}") from None
