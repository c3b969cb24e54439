"""Requests to a server that listens on this machine only: a web page of another host must not reach it."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from memory_program.configs.serve_config import LOOPBACK


def find_foreign_host(headers: Mapping[str, str]) -> str | None:
    """Name the host or the origin of a request that is not this machine; None if both are.

    A browser sends the origin of a page, and the host whose name may have been pointed at this machine.
    """
    for name, address in (("host", headers.get("host", "")), ("origin", headers.get("origin"))):
        if address is None:
            continue
        try:
            host = urlsplit(address if "//" in address else f"//{address}").hostname
        except ValueError:
            host = None
        if host not in LOOPBACK:
            return f"the {name} {address!r:.80} is not this machine"
    return None
