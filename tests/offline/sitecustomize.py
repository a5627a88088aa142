"""Refuses the network to the tests: loaded by conftest, and by every child Python at its start."""

from __future__ import annotations

import ipaddress
import socket
import sys

OWN_NAMES = {None, "", "localhost", socket.gethostname()}


def _local(host: object) -> bool:
    name = host.decode() if isinstance(host, bytes) else host
    if name in OWN_NAMES:
        return True
    try:
        address = ipaddress.ip_address(str(name).partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def refuse_network(event: str, arguments: tuple[object, ...]) -> None:
    """Audit hook: raise on a connection, a datagram or a name look-up that leaves this machine."""
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) else None
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        host = arguments[0]
    else:
        return
    if not _local(host):
        raise RuntimeError(f"a test called the network: {event} {host!r}")


sys.addaudithook(refuse_network)
