"""Text that cannot stay, because of a check, a ban or a loop, and how far it is taken back.

What tells a loop from text that may repeat (lists, tables, code, and text of the prompt) follows
from the tokens alone, so there is nothing to take back, and as long as nothing repeats it costs one
comparison a token: a period is looked for every few tokens.

Must never append a token: ``accept`` does. Invariant: what was delivered stays, unless the reader
is told what to delete.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from ...errors import DeadEndError, OptionError
from ...filters import Constraint
from ...images import plain
from ...text import BanMatch, StopMatch, Transcript
from ...tokens import Token, Vocabulary
from ...workers import Work
from ..chunk import FinishReason, Rejected
from ..history import History
from .leads import leaves_any
from .parts import Repeat, ThinkingLimit
from .request import Request

CHECKS = 10  # how often a finished text that fails its check is taken back
LOOPS = 3  # how often loops are taken back at one place
LOOPED = 256  # tokens that loops may take back besides a quarter of the text
DRAWS_FOR_BANS = 32  # draws that bans may take back per token, as if there were 32 tokens more
BRIEFLY = 0.005  # seconds to wait for a check before other requests go on

# What a loop is
EVERY = 4  # tokens between two looks
LONGEST = 1024  # tokens of the longest turn
TURNS = 3
LEAST = 16  # tokens of the shortest loop in prose
WORD = 64  # if a turn has fewer than ``LETTERS`` different letters, as a single word, or is blank
PATIENT = 256  # in code, or if a turn has no letters: it may be a table, a matrix or a line
LETTERS = 6
HELD = 8  # tokens of a loop that are held back, or a turn's if it has more
FENCE = "```"


def finish(request: Request, reason: FinishReason) -> None:
    """End the text here."""
    if request.closing is not None and not request.may_end:
        request.tally.incomplete = request.closing.why
    request.finish_reason = reason


def go_back(request: Request, to: int, drawn: int) -> None:
    """Keep the first ``to`` tokens of the history; the positions up to ``drawn`` had been drawn."""
    target = max(0, to - request.base)
    request.tally.violates = ""
    request.rewind(to)
    request.retries.back(target, drawn)


def refuse(request: Request, target: int, why: Rejected, drawn: int) -> None:
    """Go back to ``target`` and reject the token drawn there, because the last of the ``drawn``
    tokens cannot stay."""
    request.tally.redraws += 1
    request.tally.rewound_tokens += drawn - 1 - target
    go_back(request, request.base + target, drawn)
    request.retries.reject(target, why, drawn - target)


def check(request: Request, constraint: Constraint, *, forced: bool, ends: bool) -> bool:
    """Have the filters check a text that ``ends``, or a complete part, and take it back a few times
    if they object. Returns whether it stays, if only as the best that was found.

    Raises ``DeadEndError`` if it cannot stay and no other one was found.
    """
    position, retries, outbox = request.position - 1, request.retries, request.outbox
    try:
        found = constraint.objection(ends=ends)
        while isinstance(found, Work):
            if not found.wait(None if forced or outbox.is_pushed else BRIEFLY):
                request.rewind(request.base + position)
                request.checking = found  # the same token is drawn again when it is over
                return False
            found = constraint.objection(ends=ends)
    except BaseException:  # the check itself fails
        request.rewind(request.base + position)
        raise
    if found is not None:
        reason, tokens, is_final = found
        # What a reader who went back has kept stays
        first = min(max(position + 1 - tokens, request.first, outbox.settled), position)
        if not tokens:
            retries.give_up(position)
        elif first >= outbox.floor and retries.again("check", first, first).times <= CHECKS:
            token, text = request.history[request.base + first], _text(request, first)
            refuse(request, first, Rejected(token, "check", reason, text), position + 1)
            return False
        elif is_final:
            request.rewind(len(request.history) - 1)
            raise DeadEndError(f"no answer was found that fits the whole schema: {reason}")
        request.tally.violates = reason
    retries.tries.pop("check", None)
    return True


def too_long(request: Request) -> bool:
    """Take back a text that was taken back for a check before, and has now outgrown the budget: the
    one before fitted, so another may. Returns whether there is a further try."""
    tried = request.retries.tries.get("check")
    if tried is None or request.position < request.budget or tried.until < request.outbox.floor:
        return False
    first = tried.until
    if request.retries.again("check", first, first).times > CHECKS:
        return False
    why = "it is longer than there is room for"
    rejected = Rejected(request.history[request.base + first], "check", why, _text(request, first))
    refuse(request, first, rejected, request.position)
    return True


def ban_at_end(request: Request, event: StopMatch | None) -> BanMatch | None:
    """The ban that matches only at the end of the text, which a stop may have cut."""
    try:
        return request.transcript.ban_at_end(None if event is None else event.start)
    except OptionError:  # an expression takes too long
        request.rewind(len(request.history) - 1)
        raise


def ban(request: Request, match: BanMatch) -> None:
    """Go back to the token that holds the match's first character, and exclude it there.

    What was delivered stays: if the match begins in it, the first token after it is excluded.

    The allowance of draws grows with the length of the text. Without a limit, an expression that
    every text matches would reject one text after the other for ever.
    """
    target = request.transcript.token_at(match.start)
    drawn, retries = request.position, request.retries
    problem = ""
    if target < request.first:
        problem = (
            f"the banned {match.pattern!r} begins inside the prefix, at token {target}, which "
            "cannot be taken back; shorten the prefix, or drop the ban"
        )
    target = max(target, request.outbox.floor)
    spent = retries.again("ban", target, drawn).tokens + drawn - target
    if not problem and spent > DRAWS_FOR_BANS * (drawn + DRAWS_FOR_BANS):
        problem = (
            f"bans have taken back {spent} draws of a text of {drawn} tokens, the last one "
            f"because of {match.pattern!r}: the model finds hardly any text without them; ban less"
        )
    if problem:
        request.rewind(len(request.history) - 1)
        raise DeadEndError(problem)
    token = request.history[request.base + target]
    refuse(request, target, Rejected(token, "ban", match.pattern), drawn)
    retries.exclude(target, token)


def loop(request: Request, repeat: Repeat) -> Sequence[Token] | None:
    """Go back to the second turn of a loop, or to an earlier turn if there was a loop here before,
    and exclude the token that began it. If that does not help, end the thinking or the text.

    What was delivered stays. Returns the run to append, which ends the thinking or is empty;
    ``None`` if nothing was done, because the text may not end yet.
    """
    options, retries, drawn = request.options, request.retries, request.position
    start, period = drawn - repeat.run, repeat.period
    turn = request.vocabulary.decode(request.history[-period:])
    floor, tries = max(request.first, request.outbox.settled), retries.again("loop", start, drawn)
    target = max(start + repeat.kept - (tries.times - 1) * period, floor)
    if request.constraint is not None:  # forced tokens were no choice, the newest one was
        target += (drawn - 1 - target) % period
    while target > floor and request.transcript.is_open(target):
        target -= 1
    token, text = request.history[request.base + target], _text(request, target)
    why = Rejected(token, "loop", turn, text)
    # At most a quarter of the tokens is taken back, and ``LOOPED`` more
    spent = tries.tokens + drawn - target
    if options.loops == "stop" or tries.times > LOOPS or spent > drawn // 4 + LOOPED:
        if options.ignore_eos or drawn < options.min_tokens:
            return None
        refuse(request, target, why, drawn)
        request.tally.looped = turn
        finish(request, "stop" if request.may_end else "length")
        return ()
    thoughts = request.transcript.thoughts
    leaves = tries.times > 1 and thoughts is not None and thoughts.is_open
    refuse(request, target, why, drawn)
    request.tally.loops += 1
    run: Sequence[Token] = ()
    if thoughts is not None and leaves:  # by the mark that ends the thinking, if it is allowed
        limit = request.thinking or ThinkingLimit.of(0, thoughts.marks, request.vocabulary)
        run = limit.mark if limit is not None else ()
        if request.constraint is not None and request.constraint.validate(run) < len(run):
            run = ()
    if not run and leaves_any(request, {token}):
        retries.exclude(target, token)
    return run


def _text(request: Request, target: int) -> str:
    """The text after the first ``target`` generated tokens."""
    decoder = request.transcript.decoder
    return decoder.slice(decoder.end(target), decoder.end())


def repeated(
    known: Repeat | None,
    history: History,
    base: int,
    transcript: Transcript,
    vocabulary: Vocabulary,
) -> Repeat:
    """How the tokens after the first ``base`` end; ``known`` is the answer for fewer of them."""
    position = len(history) - base
    looked = position - position % EVERY
    if known is None or known.at < looked or known.at > position:
        known = _look(history, base, looked, transcript, vocabulary)
    more, period = position - known.at, known.period
    if not more:
        return known
    if not period or history[-more:] != history[-more - period : -period]:
        return Repeat(position)
    return known._replace(at=position, run=known.run + more)


def _look(
    history: History, base: int, at: int, transcript: Transcript, vocabulary: Vocabulary
) -> Repeat:
    end = base + at
    newest = history[max(base, end - 2 * LONGEST) : end]
    newest.reverse()
    period = 0
    while newest:
        try:
            period = newest.index(newest[0], period + 1, LONGEST + 1)
        except ValueError:
            break
        span = max(period, HELD - period)
        if newest[:span] != newest[period : period + span]:
            continue
        start = end - period - span
        while start > base and history[start - 1] == history[start - 1 + period]:
            start -= 1
        turn, patience = history[end - period : end], LEAST
        said = vocabulary.decode(turn).lower()
        letters = {letter for letter in said if letter.isalpha()}
        text = transcript.decoder.slice(0, transcript.decoder.end(at))
        if said.isspace():
            patience = WORD
        elif not letters or text.count(FENCE) % 2:
            patience = PATIENT
        elif len(letters) < LETTERS:
            patience = WORD
        least = max(TURNS * period, patience)
        kept = period
        if end - start >= least:
            # From the second turn on: the first may begin with text that is not in the prompt
            again = _spelled(history[start + period : end], vocabulary)
            size, turns = len(_spelled(turn, vocabulary)), range(1, (end - start) // period)
            prompt = _spelled(plain(history[:base]), vocabulary)
            kept += period * bisect_left(turns, True, key=lambda n: again[: n * size] not in prompt)
        most = kept + least - period
        free = most - max(period, HELD)
        return Repeat(at, period, end - start, kept, free, end - start >= most)
    return Repeat(at)


def _spelled(tokens: Iterable[Token], vocabulary: Vocabulary) -> bytes:
    return b"".join(map(vocabulary.piece, tokens))
