"""What replies to a request look like: values that parsing makes and every reply reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...engine import Options
from ...tokens import Vocabulary
from ..asked import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyPlan:
    """What replies to a request look like; the same for each of them.

    - ``questions``: the one of each answer; every prompt has ``choices`` of them.
    - ``options``: those of the first answer.
    - ``ids``: add token ids, and all that is known about each token if ``logprobs`` are wanted.
    - ``reasoning``: whether thoughts are returned.
    - ``silent``: the generated text is not returned.
    - ``branched``: the answers are the branches of a program, all to the one prompt.
    - ``retracts``: what is taken back is said in the stream; otherwise text that could be is held.
    - ``timings`` and ``progress``: whether to report the speed of the answer and the progress of
      the prompt.
    - ``params``: as in ``Call``.
    """

    model: str
    vocabulary: Vocabulary
    questions: Sequence[Question]
    options: Options
    choices: int = 1
    stream: bool = False
    include_usage: bool = False
    ids: bool = False
    reasoning: bool = True
    prompt_logprobs: bool = False
    silent: bool = False
    branched: bool = False
    retracts: bool = False
    timings: bool = False
    progress: bool = False
    params: Mapping[str, str] = field(default_factory=dict)

    @property
    def logprobs(self) -> bool:
        """Whether log-probabilities are wanted."""
        return self.options.top_logprobs is not None

    @property
    def holds(self) -> bool:
        """Whether a choice is said only at its end, as its text could be taken back until then."""
        late = self.stream and self.options.hold_tokens > 0  # what goes back further is an error
        return self.options.allow_retract and not self.retracts and not late

    def question(self, index: int) -> Question:
        """The prompt of an answer, and how to read it."""
        return self.questions[0 if self.branched else index]

    @property
    def given(self) -> int:
        """How many tokens of each answer are the client's own."""
        return len(self.options.prefix)
