"""How the other ranks connect to rank 0.

Rank 0 listens on a port that the system chooses, and tells the others its addresses, the port and a
secret of this run. A rank that connects sends its number and proves that it knows the secret; so
does rank 0 in its answer, since an address may lead to the wrong machine. Other connections are
dropped, one after another. (The challenges of ``multiprocessing.connection`` end in an assertion if
a stranger sends something else.)
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import NamedTuple

_GREETING = 0.25  # seconds for a new connection to send its rank
_TRY, _ANSWER = 2.0, 5.0  # seconds for a connection to an address, and for the answer there
_PAUSE = 0.2  # seconds before all addresses are tried again


class Invitation(NamedTuple):
    """What the other ranks need to know to reach rank 0."""

    addresses: Sequence[str]
    port: int
    secret: str

    def proof(self, rank: int) -> bytes:
        """A proof that the sender, or the receiver, of ``rank`` knows the secret."""
        return hmac.digest(self.secret.encode(), struct.pack("!I", rank), "sha256")


def invite(known: Sequence[Sequence[str]]) -> tuple[socket.socket, Invitation]:
    """A listening socket, and the invitation to it.

    ``known`` has the known addresses of the ranks, by rank. Some may lead to one neighbour only, as
    over a Thunderbolt cable, so rank 0 listens on all its addresses.
    """
    flat = [address for each in known for address in each]
    if flat and all(address.startswith("127.") for address in flat):
        addresses, bound = ["127.0.0.1"], "127.0.0.1"
    else:
        name = socket.gethostname()
        routes = [_route_to(address) for address in [*flat, "192.0.2.1"]]  # for documentation
        mine = [*(known[0] if known else ()), *routes, name, f"{name.removesuffix('.local')}.local"]
        addresses, bound = list(dict.fromkeys(filter(None, mine))), ""
    listener = socket.create_server((bound, 0), backlog=64)
    return listener, Invitation(addresses, listener.getsockname()[1], secrets.token_hex())


def _route_to(address: str) -> str:
    """This machine's own address on the route to another; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def receive_all(
    listener: socket.socket, invitation: Invitation, ranks: Iterable[int], timeout: float
) -> dict[int, socket.socket]:
    """The connections of those ``ranks`` that connect within ``timeout`` seconds."""
    missing, met = set(ranks), dict[int, socket.socket]()
    until = time.monotonic() + timeout
    while missing and (left := until - time.monotonic()) > 0:
        listener.settimeout(left)
        try:
            guest, _ = listener.accept()
        except TimeoutError:
            break
        with suppress(OSError, EOFError, struct.error), _talking(guest, _GREETING) as link:
            rank, proof = struct.unpack("!I32s", link.recv_bytes(36))
            if rank in missing and hmac.compare_digest(proof, invitation.proof(rank)):
                link.send_bytes(invitation.proof(0))
                missing.remove(rank)
                met[rank] = guest
        if guest not in met.values():
            guest.close()
    return met


def reach(invitation: Invitation, rank: int, timeout: float) -> socket.socket:
    """A connection to rank 0. Raises ``OSError`` with the addresses and why each of them failed."""
    until = time.monotonic() + timeout
    while True:
        failed = []
        for address in invitation.addresses:
            try:
                return _introduce(address, invitation, rank)
            except OSError as error:
                failed.append(f"{address} ({error.strerror or error})")
        if time.monotonic() > until:
            raise OSError(", ".join(failed))
        time.sleep(_PAUSE)


def _introduce(address: str, invitation: Invitation, rank: int) -> socket.socket:
    connection = socket.create_connection((address, invitation.port), timeout=_TRY)
    try:
        with _talking(connection, _ANSWER) as link:
            link.send_bytes(struct.pack("!I32s", rank, invitation.proof(rank)))
            if hmac.compare_digest(link.recv_bytes(32), invitation.proof(0)):
                return connection
    except (EOFError, OSError):
        pass
    except BaseException:
        connection.close()
        raise
    connection.close()
    raise ConnectionRefusedError("another program answers there")


@contextmanager
def _talking(own: socket.socket, seconds: float) -> Iterator[Connection]:
    """Messages over a socket; reading one fails after ``seconds`` seconds."""
    own.settimeout(None)
    limit_waits(own, socket.SO_RCVTIMEO, seconds)
    with Connection(os.dup(own.fileno())) as link:
        yield link
    limit_waits(own, socket.SO_RCVTIMEO, 0)


def limit_waits(own: socket.socket, option: int, seconds: float) -> None:
    """Let the system end sends or receives of a socket after ``seconds`` seconds; 0 is no limit."""
    own.setsockopt(
        socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    )
