"""Where in a prompt its windows and recurrent states are worth a snapshot.

Owns the choice alone: which tokens are in the prompt, and where its messages begin, is told. A
sequence can go on from a snapshot only, so these are the places that others will share: the end of
the system prompt and the tools; the beginning of the last message, which may be another one next
time; that of its answer, as many templates leave out its reasoning later; in between, the beginning
of a message now and then; and where a prompt parts from what is known, as the next one may do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LEAST = 16  # tokens from one place to the next
SPACING = 512  # tokens from one to the next between the first message and the last
WIDEST = 4096
PARTED = 64  # tokens that are known, but were not to be had, from which on a place is worth it


def spacing_of(snapshot: int, token: int) -> int:
    """How far apart places are that nobody may come back to: snapshots take no more memory than
    the KV of the tokens between them. ``snapshot`` and ``token`` are bytes."""
    return max(SPACING, min(snapshot // token, WIDEST)) if token else SPACING


def places_of(beginnings: Sequence[int], end: int, spacing: int) -> list[int]:
    """The places of a prompt whose messages begin at these, the last of which may be the answer;
    ``end`` is the last place from which it can be gone on.

    Prompts that begin alike have the same places there, apart from the last ones.
    """
    inner = [place for place in beginnings if place >= LEAST]
    return [*_spaced(inner[:-2], spacing), *inner[-2:], end]


def ahead(places: Iterable[int], held: int, known: int) -> list[int]:
    """Those that are to be kept of a prompt of which ``held`` tokens need not run.

    ``known`` tokens of it have run before: if these are many more, others have parted from it
    there, and others will.
    """
    parting = [known] if known - held >= PARTED else []
    inner = sorted(place for place in {*places, *parting} if place >= held + LEAST)
    return _spaced(inner, LEAST)


def _spaced(places: Iterable[int], spacing: int) -> list[int]:
    """The first one, and each that is so far from the one before."""
    spaced: list[int] = []
    for place in places:
        if not spaced or place - spaced[-1] >= spacing:
            spaced.append(place)
    return spaced
