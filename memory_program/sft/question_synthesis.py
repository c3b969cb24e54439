"""Synthetic questions for conversations without any: a strong model writes them and must answer them.

MemBuilder (arXiv 2601.05488, section 4.1) trains on questions that a model wrote for each session. We
differ: MemBuilder keeps all questions. Here a question is kept only if its evidence turns exist, if the model
gives the same answer from the session alone, and if the conversation has no similar question yet.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import dspy

from locomo.types import Category, Conversation, Question, Session
from memory_program import __version__
from memory_program.agents.context import ReaderContext
from memory_program.agents.predict_call import CallFailedError, dspy_history_disabled, predict
from memory_program.agents.reply_limits import QUESTION_TOKENS, READER_TOKENS
from memory_program.agents.signatures import EMPTY_PLACEHOLDER, AnswerQuestion, WriteQuestions
from memory_program.agents.tool_schema import ToolOffer
from memory_program.agents.writer import format_session_date
from memory_program.bank.outcomes import Answer, Outcome
from memory_program.core.parallel import run_parallel
from memory_program.models.model_names import model_fingerprint
from memory_program.models.reply_settings import ReplySettings
from memory_program.rl.rewards import AnswerMetric
from memory_program.sft.session_lines import (
    SessionLine,
    append_line,
    check_resumable,
    read_lines,
    session_file,
    session_json,
)

_YEAR = re.compile(r"\b(?:19|20)\d\d\b")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class SynthesisResult:
    """Progress on one conversation: the number of finished sessions, and the failure that stopped it."""

    conversation: Conversation
    sessions: int
    rejected: Counter[str]
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class QuestionSynthesizer:
    """Writes and checks questions.

    Args:
        lm: the strong model.
        score: the metric of the model's own answer; 1 is equal.
        questions_per_session: the number of questions requested.
        min_score: the lowest score of the model's own answer.
        min_novelty: the lowest Jaccard distance between the words of a question and those of earlier ones.
        replies: the format and limit of replies.
    """

    lm: dspy.LM
    score: AnswerMetric
    questions_per_session: int = 5
    min_score: float = 0.5
    min_novelty: float = 0.25
    replies: ReplySettings = field(default_factory=ReplySettings)

    def synthesize(
        self, conversations: Sequence[Conversation], folder: Path, *, threads: int
    ) -> list[SynthesisResult]:
        """Write questions about every session, and resume from the files in the folder.

        The conversations run in parallel, and their own questions are dropped.

        Raises:
            RecordError: a file holds the sessions of another conversation, or another model's questions.
        """
        folder.mkdir(parents=True, exist_ok=True)
        model = model_fingerprint(self.lm.model)

        def write(conversation: Conversation) -> SynthesisResult:
            name, failure = conversation.conversation_id, None
            path = session_file(folder, name)
            done = read_lines(path, ("session", "questions", "rejected")) if path.exists() else []
            recorded = [line["session"] for line in done]
            check_resumable(path, done, recorded, conversation.sessions, model)
            for session in conversation.sessions[len(done) :]:
                asked = [kept["question"] for one in done for kept in one["questions"]]
                try:
                    line = self._session(session, asked)
                except CallFailedError as error:
                    failure = str(error)
                    break
                append_line(path, line)
                done.append(line)
            rejected = Counter(one["reason"] for line in done for one in line["rejected"])
            drafts = [kept for line in done for kept in line["questions"]]
            questions = tuple(_question(name, n, draft) for n, draft in enumerate(drafts))
            return SynthesisResult(replace(conversation, questions=questions), len(done), rejected, failure)

        with dspy_history_disabled():
            return run_parallel([partial(write, conversation) for conversation in conversations], threads)

    def _session(self, session: Session, asked: Sequence[str]) -> SessionLine:
        """Ask for questions about a session, and check each; raises ``CallFailedError``."""
        write = dspy.Predict(WriteQuestions)
        write.lm = self.lm
        reply = predict(
            "synthesize.write",
            write,
            self.replies,
            128 + self.questions_per_session * QUESTION_TOKENS,
            offer=ToolOffer(shown_ids=tuple(turn.turn_id for turn in session.turns)),
            session_date=format_session_date(session),
            session="\n".join(f"{turn.turn_id} {turn.line}" for turn in session.turns),
            asked="\n".join(asked) or EMPTY_PLACEHOLDER,
            count=self.questions_per_session,
        )
        kept: list[SessionLine] = []
        rejected: list[SessionLine] = []
        for one in reply.questions[: self.questions_per_session]:
            draft: SessionLine = {
                "question": one.question.strip(),
                "answer": one.answer.strip(),
                "evidence": one.evidence,
            }
            reason = self._rejection_reason(draft, session, [*asked, *(other["question"] for other in kept)])
            if reason is None:
                kept.append(draft)
            else:
                rejected.append({**draft, "reason": reason})
        return {
            "session": session_json(session),
            "model": model_fingerprint(self.lm.model),
            "version": __version__,
            "questions": kept,
            "rejected": rejected,
        }

    def _rejection_reason(self, draft: SessionLine, session: Session, asked: Sequence[str]) -> str | None:
        """Say what is wrong with a question; None if it is kept."""
        if not draft["question"] or not draft["answer"]:
            return "empty"
        if not draft["evidence"] or not set(draft["evidence"]) <= {turn.turn_id for turn in session.turns}:
            return "no such turn"
        words = set(_WORD.findall(draft["question"].casefold()))
        for other in asked:
            others = set(_WORD.findall(other.casefold()))
            if len(words & others) / max(1, len(words | others)) > 1 - self.min_novelty:  # Jaccard
                return "asked before"
        answer = dspy.Predict(AnswerQuestion)
        answer.lm = self.lm
        excerpts = f"{format_session_date(session)}\n{session.transcript}"
        inputs: dict[str, Any] = ReaderContext(excerpts=excerpts).inputs(draft["question"])
        try:
            reply = predict("synthesize.check", answer, self.replies, READER_TOKENS, **inputs)
            given = Answer(reply.answer.strip())
        except CallFailedError as error:
            if error.failure.outcome is Outcome.ERROR:
                raise
            given = Answer("", error.failure.outcome)  # an unreadable reply is no answer
        found = self.score(_question("", 0, draft), given)
        return None if found is not None and found >= self.min_score else "not answerable"


def _question(conversation_id: str, index: int, draft: SessionLine) -> Question:
    category = Category.TEMPORAL if _YEAR.search(draft["answer"]) else Category.SINGLE_HOP
    evidence = tuple(dict.fromkeys(draft["evidence"]))
    return Question(conversation_id, index, draft["question"], category, draft["answer"], evidence)
