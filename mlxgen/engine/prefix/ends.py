"""Where in a prompt a snapshot of windows and recurrent states is worth its memory.

Owns the choice alone: the caller says where messages begin. A sequence can go on only from a
snapshot, so snapshots belong where later prompts are likely to part:

- the end of the system prompt and the tools;
- the beginning of the last message, which may be another one next time;
- the beginning of its answer, as many templates leave out the reasoning of earlier answers;
- in between, the beginning of some messages;
- where this prompt parts from what is known, as the next one may part there, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

LEAST = 16  # tokens from one place to the next
SPACING = 512  # tokens from one to the next between the first message and the last
WIDEST = 4096
PARTED = 64  # tokens that are known, but were not to be had, from which on a place is worth it


def spacing_of(snapshot: int, token: int) -> int:
    """How far apart the places in between are: so far that a snapshot takes no more memory than
    the KV of the tokens before it. ``snapshot`` and ``token`` are bytes."""
    return max(SPACING, min(snapshot // token, WIDEST)) if token else SPACING


def places_of(beginnings: Sequence[int], end: int, spacing: int) -> list[int]:
    """The places of a prompt whose messages begin at these, the last of which may be the answer;
    ``end`` is the last place from which the prompt can go on.

    Prompts with a common beginning have the same places in it, apart from the last ones.
    """
    inner = [place for place in beginnings if place >= LEAST]
    return [*_spaced(inner[:-2], spacing), *inner[-2:], end]


def ahead(places: Iterable[int], held: int, known: int) -> list[int]:
    """The places at which to keep a snapshot of a prompt of which ``held`` tokens need not run.

    ``known`` tokens of it have run before. If that is many more, an earlier prompt parted from it
    there, and later ones may, too.
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
