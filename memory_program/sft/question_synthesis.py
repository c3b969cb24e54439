"""Questions for conversations that have none: a strong model writes them, and must be able to answer them.

MemBuilder (arXiv 2601.05488, section 4.1) trains on questions that a model wrote for each session. Deviation:
theirs are taken as they come; here one is kept only if it names turns that exist, if the model, shown the
session and not the answer, gives that answer, and if nothing alike was asked of the conversation before.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import dspy

from locomo.types import Category, Conversation, Question, Session
from memory_program import __version__
from memory_program.agents.context import ReaderContext
from memory_program.agents.predict_call import CallFailedError, predict
from memory_program.agents.signatures import NOTHING, AnswerQuestion, WriteQuestions
from memory_program.agents.writer import spelled_date
from memory_program.bank.outcomes import Answer, Outcome
from memory_program.core.parallel import side_by_side
from memory_program.models.model_names import known_as
from memory_program.rl.rewards import AnswerScore
from memory_program.sft.session_lines import (
    Line,
    append_line,
    check_done,
    file_of,
    json_of,
    read_lines,
)

_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Synthesized:
    """How a conversation stands: its sessions that are done, and why there are not more."""

    conversation: Conversation
    sessions: int
    rejected: Counter[str]
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Synthesizer:
    """Writes and checks questions.

    Args:
        lm: the strong model.
        score: what the model's own answer is compared with; 1 is equal.
        wanted: questions asked for, for each session.
        least_score: of the model's own answer, for a question to be kept.
        least_new: share of a question's words that each earlier one must lack (1 - Jaccard).
    """

    lm: dspy.LM
    score: AnswerScore
    wanted: int = 5
    least_score: float = 0.5
    least_new: float = 0.25

    def synthesize(
        self, conversations: Sequence[Conversation], folder: Path, *, threads: int
    ) -> list[Synthesized]:
        """Write questions about every session, conversations side by side; what is there is gone on with.

        Args:
            conversations: what is asked about; the questions that they have are left out.
            folder: where each conversation has its file.
            threads: conversations at once.

        Raises:
            RecordError: a file holds other sessions than its conversation, or what another model did.
        """
        folder.mkdir(parents=True, exist_ok=True)
        return side_by_side([partial(self._conversation, c, folder) for c in conversations], threads)

    def _conversation(self, conversation: Conversation, folder: Path) -> Synthesized:
        path = file_of(folder, conversation.conversation_id)
        done = read_lines(path) if path.exists() else []
        check_done(
            path, done, [line["session"] for line in done], conversation.sessions, known_as(self.lm.model)
        )
        failure = None
        for session in conversation.sessions[len(done) :]:
            try:
                line = self._session(session, [kept["question"] for one in done for kept in one["questions"]])
            except CallFailedError as error:
                failure = str(error)
                break
            append_line(path, line)
            done.append(line)
        rejected = Counter(one["reason"] for line in done for one in line["rejected"])
        return Synthesized(_asked(conversation, done), len(done), rejected, failure)

    def _session(self, session: Session, asked: Sequence[str]) -> Line:
        """Ask for questions about a session, and check each.

        Raises:
            CallFailedError: the questions cannot be had.
        """
        kept: list[Line] = []
        rejected: list[Line] = []
        for draft in self._drafts(session, asked):
            reason = self._fault(draft, session, [*asked, *(one["question"] for one in kept)])
            if reason is None:
                kept.append(draft)
            else:
                rejected.append({**draft, "reason": reason})
        return {
            "session": json_of(session),
            "model": known_as(self.lm.model),
            "version": __version__,
            "questions": kept,
            "rejected": rejected,
        }

    def _drafts(self, session: Session, asked: Sequence[str]) -> list[Line]:
        write = dspy.Predict(WriteQuestions)
        write.lm = self.lm
        reply = predict(
            "synthesize.write",
            write,
            session_date=spelled_date(session),
            session="\n".join(f"{turn.turn_id} {turn.line}" for turn in session.turns),
            asked="\n".join(asked) or NOTHING,
            count=self.wanted,
        )
        return [
            {"question": one.question.strip(), "answer": one.answer.strip(), "evidence": one.evidence}
            for one in reply.questions[: self.wanted]
        ]

    def _fault(self, draft: Line, session: Session, asked: Sequence[str]) -> str | None:
        """Say what is wrong with a question; None if it is kept."""
        if not draft["question"] or not draft["answer"]:
            return "empty"
        if not draft["evidence"] or not set(draft["evidence"]) <= {turn.turn_id for turn in session.turns}:
            return "no such turn"
        if any(_overlap(draft["question"], other) > 1 - self.least_new for other in asked):
            return "asked before"
        found = self.score(_question("", 0, draft), self._answered(draft["question"], session))
        return None if found is not None and found >= self.least_score else "not answerable"

    def _answered(self, question: str, session: Session) -> Answer:
        """Let the model answer from the session alone; a reply that cannot be read is no answer.

        Raises:
            CallFailedError: the call is lost.
        """
        answer = dspy.Predict(AnswerQuestion)
        answer.lm = self.lm
        excerpts = f"{spelled_date(session)}\n{session.transcript}"
        inputs = ReaderContext(excerpts=excerpts).inputs(question)
        try:
            return Answer(predict("synthesize.check", answer, **inputs).answer.strip())
        except CallFailedError as error:
            if error.failure.outcome is Outcome.ERROR:
                raise
            return Answer("", error.failure.outcome)


def _asked(conversation: Conversation, done: Sequence[Line]) -> Conversation:
    """Give the conversation with the questions that were kept, in the place of its own."""
    drafts = [kept for line in done for kept in line["questions"]]
    name = conversation.conversation_id
    return replace(conversation, questions=tuple(_question(name, n, draft) for n, draft in enumerate(drafts)))


def _question(conversation_id: str, index: int, draft: Line) -> Question:
    category = Category.TEMPORAL if _YEAR.search(draft["answer"]) else Category.SINGLE_HOP
    evidence = tuple(dict.fromkeys(draft["evidence"]))
    return Question(conversation_id, index, draft["question"], category, draft["answer"], evidence)


def _overlap(one: str, other: str) -> float:
    """Give the share of common words among all words of both (Jaccard).

    Example:
        >>> _overlap("Where does Nate live?", "where does nate live")
        1.0
    """
    first, second = (set(_WORD.findall(text.casefold())) for text in (one, other))
    return len(first & second) / max(1, len(first | second))
