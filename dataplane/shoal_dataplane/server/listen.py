"""Ports, and errors that say which flag sets them."""

from __future__ import annotations

import errno
import socket


def bind(address: str, port: int, reuse_port: bool, flag: str, backlog: int = 0) -> socket.socket:
    """Return a bound socket, one that listens if there is a `backlog`. Raises OSError naming the address, the port and its flag."""
    if not 0 <= port <= 65535:  # getaddrinfo would wrap it
        raise OSError(f"cannot listen on '{address}:{port}' ({flag}): a port is a number from 0 to 65535")
    try:
        found = socket.getaddrinfo(address or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise OSError(f"cannot listen on '{address}:{port}' ({flag}): {error.strerror or error}") from None
    # A name such as localhost may have both: the older one reaches more clients.
    family, kind, protocol, _, where = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(where)
        if backlog:
            listener.listen(backlog)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise OSError(f"Socket '{address}:{port}' already in use: choose another port with {flag}") from None
        raise OSError(f"cannot listen on '{address}:{port}' ({flag}): {error.strerror or error}") from None
    return listener
