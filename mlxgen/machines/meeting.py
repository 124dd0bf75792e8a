"""How the connections between rank 0 and the others come about.

Rank 0 listens on a port that the system chooses, and tells the others its addresses, the port and
a secret of this run. Whoever connects says its rank and proves that it knows the secret; so does
rank 0 in its answer, since an address may lead to another machine than the one that is meant.
Everybody else is dropped, and nobody is listened to once all ranks are there.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

_RANK = struct.Struct("!I")
_PROOF = hashlib.sha256().digest_size
_HELLO = _RANK.size + _PROOF  # bytes of what a rank says first
_GUESTS = 64  # connections at a time that have not said their rank; the oldest goes
_TRY = 2.0  # seconds for each step of an attempt at an address
_PAUSE = 0.2  # seconds before all addresses are tried again


class Invitation(NamedTuple):
    """What the other ranks have to know to reach rank 0."""

    addresses: Sequence[str]
    port: int
    secret: str

    def proof(self, rank: int) -> bytes:
        """What only those can say who know the secret."""
        return hmac.digest(self.secret.encode(), _RANK.pack(rank), "sha256")


def invite(known: Sequence[Sequence[str]]) -> tuple[socket.socket, Invitation]:
    """A socket that listens, and where it can be reached.

    ``known`` has the addresses of ranks, as far as they are known, by rank. They may lead to one
    neighbour only, as cables of Thunderbolt do, so rank 0 listens on all its addresses.
    """
    flat = [address for each in known for address in each]
    if flat and all(address.startswith("127.") for address in flat):
        addresses, bound = ["127.0.0.1"], "127.0.0.1"
    else:
        name = socket.gethostname()
        routes = [_route_to(address) for address in [*flat, "192.0.2.1"]]  # of documentation
        mine = [*(known[0] if known else ()), *routes, name, f"{name.removesuffix('.local')}.local"]
        addresses, bound = list(dict.fromkeys(filter(None, mine))), ""
    listener = socket.create_server((bound, 0), backlog=2 * _GUESTS)
    return listener, Invitation(addresses, listener.getsockname()[1], secrets.token_hex())


def _route_to(address: str) -> str:
    """This machine's own address on the way to another; nothing is sent for that."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def receive_all(
    listener: socket.socket, invitation: Invitation, ranks: Iterable[int], timeout: float
) -> dict[int, socket.socket]:
    """Connections of the ``ranks`` that come within ``timeout`` seconds."""
    until = time.monotonic() + timeout
    missing, met = set(ranks), dict[int, socket.socket]()
    listener.setblocking(False)
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while missing and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if key.fileobj is listener:
                    _admit(listener, selector)
                    continue
                guest = cast(socket.socket, key.fileobj)
                if guest.fileno() < 0:  # it went when another one was admitted
                    continue
                try:
                    rank = _introduced(guest, key.data, invitation, missing)
                except OSError:
                    selector.unregister(guest)
                    guest.close()
                    continue
                if rank is not None:
                    selector.unregister(guest)
                    missing.remove(rank)
                    met[rank] = guest
        for guest in _guests(selector, listener):
            guest.close()
    return met


def _guests(selector: selectors.BaseSelector, listener: socket.socket) -> list[socket.socket]:
    """Who has not said yet which rank it is, the oldest first."""
    known = [cast(socket.socket, key.fileobj) for key in selector.get_map().values()]
    return [each for each in known if each is not listener]


def _admit(listener: socket.socket, selector: selectors.BaseSelector) -> None:
    try:
        guest, _ = listener.accept()
    except OSError:
        return  # it went again
    guest.setblocking(False)
    selector.register(guest, selectors.EVENT_READ, bytearray())
    guests = _guests(selector, listener)
    if len(guests) > _GUESTS:
        selector.unregister(guests[0])
        guests[0].close()


def _introduced(
    guest: socket.socket, said: bytearray, invitation: Invitation, missing: set[int]
) -> int | None:
    """The rank of a guest, which is answered, or ``None`` before it has said everything.

    Raises ``OSError`` for a stranger.
    """
    more = guest.recv(_HELLO - len(said))
    said += more
    if len(said) < _HELLO and more:
        return None
    rank = _RANK.unpack_from(said.ljust(_HELLO))[0]
    if rank not in missing or not hmac.compare_digest(said[_RANK.size :], invitation.proof(rank)):
        raise ConnectionRefusedError
    guest.sendall(invitation.proof(0))
    return int(rank)


def reach(invitation: Invitation, rank: int, timeout: float) -> socket.socket:
    """A connection to rank 0. Raises ``OSError`` with the addresses that were tried in vain."""
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
        connection.sendall(_RANK.pack(rank) + invitation.proof(rank))
        answer = b""
        while len(answer) < _PROOF and (more := connection.recv(_PROOF - len(answer))):
            answer += more
        if not hmac.compare_digest(answer, invitation.proof(0)):
            raise ConnectionRefusedError("another program answers there")
    except BaseException:
        connection.close()
        raise
    return connection
