"""The types that every benchmark is read into: conversations, sessions, turns, questions."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from functools import cached_property

from locomo.observations import Observation


class Category(IntEnum):
    """Categories of LoCoMo questions, under the authors' own numbers.

    Source: Maharana et al. 2024, ACL, section 4.1; the numbers are those of the released file, whose
    counts per number agree with the paper's Table 5. Many published systems mislabel them.
    """

    MULTI_HOP = 1
    TEMPORAL = 2
    OPEN_DOMAIN = 3
    SINGLE_HOP = 4
    ADVERSARIAL = 5

    @property
    def label(self) -> str:
        """The name in tables and files, for example ``multi-hop``."""
        return self.name.lower().replace("_", "-")


ANSWERABLE_CATEGORIES = (Category.MULTI_HOP, Category.TEMPORAL, Category.OPEN_DOMAIN, Category.SINGLE_HOP)
"""The headline categories: 1,540 questions. Category 5 is reported apart, as abstention."""


class Benchmark(StrEnum):
    """The benchmarks. Your own files and generated conversations use LoCoMo's schema."""

    LOCOMO = "locomo"
    LOCOMO_PLUS = "locomo-plus"
    LONGMEMEVAL = "longmemeval"
    PERLTQA = "perltqa"
    PERSONAMEM = "personamem"
    BEAM = "beam"
    MEMORYAGENTBENCH = "memoryagentbench"

    @property
    def is_judged(self) -> bool:
        """True if judges of answers can be calibrated and optimised on questions of the benchmark."""
        return self in (Benchmark.LOCOMO, Benchmark.LONGMEMEVAL, Benchmark.PERLTQA)

    @property
    def has_own_score(self) -> bool:
        """True if the score is the benchmark's own, and not LoCoMo's F1."""
        return not self.is_judged


class WorldQuestionType(StrEnum):
    """Types of questions about generated conversations that LoCoMo does not have."""

    EARLIER_STATE = "earlier-state"
    """Asks what held at a time before a change. It has a score of its own, and no part in LoCoMo's."""

    @property
    def label(self) -> str:
        """The name in tables and files."""
        return self.value


class LongMemEvalType(StrEnum):
    """Types of LongMemEval questions, as the file names them.

    Source: Wu et al. 2025, ICLR, section 3.1. Abstention is no type: it cuts across all of them.
    """

    USER = "single-session-user"
    ASSISTANT = "single-session-assistant"
    PREFERENCE = "single-session-preference"
    MULTI_SESSION = "multi-session"
    TEMPORAL = "temporal-reasoning"
    KNOWLEDGE_UPDATE = "knowledge-update"

    @property
    def label(self) -> str:
        """The name in tables and files."""
        return self.value


class PerltqaType(StrEnum):
    """The kind of memory that a question of PerLTQA is about.

    Source: Du et al. 2024, SIGHAN, section 3.
    """

    PROFILE = "profile"
    RELATIONSHIP = "social_relationship"
    EVENT = "events"
    DIALOGUE = "dialogues"

    @property
    def label(self) -> str:
        """The name in tables and files, for example ``social-relationship``."""
        return self.value.replace("_", "-")


class PersonaMemType(StrEnum):
    """Types of PersonaMem questions, under the names of its longer files.

    Source: Jiang et al. 2025, arXiv 2504.14225, section 3.
    """

    RECALL = "recall_user_shared_facts"
    LATEST = "acknowledge_latest_user_preferences"
    EVOLUTION = "track_full_preference_evolution"
    REASONS = "recalling_the_reasons_behind_previous_updates"
    RECOMMEND = "provide_preference_aligned_recommendations"
    IDEAS = "suggest_new_ideas"
    GENERALIZE = "generalizing_to_new_scenarios"

    @property
    def label(self) -> str:
        """The name in tables and files, for example ``ideas``."""
        return self.name.lower()


class BeamAbility(StrEnum):
    """Abilities that BEAM's questions test, as its files name them.

    Source: Tavakoli et al. 2025, arXiv 2510.27246, section 3.
    """

    ABSTENTION = "abstention"
    CONTRADICTION = "contradiction_resolution"
    EVENT_ORDERING = "event_ordering"
    EXTRACTION = "information_extraction"
    INSTRUCTION = "instruction_following"
    UPDATE = "knowledge_update"
    MULTI_SESSION = "multi_session_reasoning"
    PREFERENCE = "preference_following"
    SUMMARIZATION = "summarization"
    TEMPORAL = "temporal_reasoning"

    @property
    def label(self) -> str:
        """The name in tables and files, for example ``event-ordering``."""
        return self.name.lower().replace("_", "-")


class PlusRelation(StrEnum):
    """The relation of a remark in LoCoMo-Plus to the cue that it calls to mind.

    Source: Li et al. 2026, ACL (arXiv 2602.10715), section 4.
    """

    CAUSAL = "causal"
    STATE = "state"
    GOAL = "goal"
    VALUE = "value"

    @property
    def label(self) -> str:
        """The name in tables and files."""
        return self.value


class Competency(StrEnum):
    """The four competencies of MemoryAgentBench, under the names of its files.

    Source: Hu et al. 2026, ICLR (arXiv 2507.05257), section 3. Later versions of the paper call the last one
    selective forgetting.
    """

    RETRIEVAL = "Accurate_Retrieval"
    LEARNING = "Test_Time_Learning"
    UNDERSTANDING = "Long_Range_Understanding"
    CONFLICT = "Conflict_Resolution"

    @property
    def label(self) -> str:
        """The name in tables and files, for example ``accurate-retrieval``."""
        return self.value.lower().replace("_", "-")


class MemoryAgentBenchTask(StrEnum):
    """Tasks of MemoryAgentBench; the value is what the names of its sources begin with."""

    SINGLE_HOP_QA = "ruler_qa1"
    MULTI_HOP_QA = "ruler_qa2"
    LONGMEMEVAL = "longmemeval_s"
    EVENT_QA = "eventqa"
    CLASSIFICATION = "icl"
    RECOMMENDATION = "recsys_redial"
    SUMMARIZATION = "infbench_sum"
    DETECTIVE_QA = "detective_qa"
    SINGLE_HOP_FACTS = "factconsolidation_sh"
    MULTI_HOP_FACTS = "factconsolidation_mh"

    @property
    def label(self) -> str:
        """The name in tables and files, for example ``event-qa``."""
        return self.name.lower().replace("_", "-")

    @property
    def competency(self) -> Competency:
        """The competency that the task belongs to."""
        return _COMPETENCIES[self]


_COMPETENCIES: Mapping[MemoryAgentBenchTask, Competency] = {
    MemoryAgentBenchTask.SINGLE_HOP_QA: Competency.RETRIEVAL,
    MemoryAgentBenchTask.MULTI_HOP_QA: Competency.RETRIEVAL,
    MemoryAgentBenchTask.LONGMEMEVAL: Competency.RETRIEVAL,
    MemoryAgentBenchTask.EVENT_QA: Competency.RETRIEVAL,
    MemoryAgentBenchTask.CLASSIFICATION: Competency.LEARNING,
    MemoryAgentBenchTask.RECOMMENDATION: Competency.LEARNING,
    MemoryAgentBenchTask.SUMMARIZATION: Competency.UNDERSTANDING,
    MemoryAgentBenchTask.DETECTIVE_QA: Competency.UNDERSTANDING,
    MemoryAgentBenchTask.SINGLE_HOP_FACTS: Competency.CONFLICT,
    MemoryAgentBenchTask.MULTI_HOP_FACTS: Competency.CONFLICT,
}

QuestionType = (
    Category
    | WorldQuestionType
    | LongMemEvalType
    | PerltqaType
    | PersonaMemType
    | BeamAbility
    | PlusRelation
    | MemoryAgentBenchTask
)
"""What a question tests, in the terms of its benchmark: a label for reports, never shown to a reader."""

HEADLINE_TYPES: Mapping[Benchmark, tuple[QuestionType, ...]] = {
    Benchmark.LOCOMO: ANSWERABLE_CATEGORIES,
    Benchmark.LONGMEMEVAL: tuple(LongMemEvalType),
    Benchmark.PERLTQA: tuple(PerltqaType),
    Benchmark.PERSONAMEM: tuple(PersonaMemType),
    Benchmark.BEAM: tuple(BeamAbility),
    Benchmark.LOCOMO_PLUS: tuple(PlusRelation),
    Benchmark.MEMORYAGENTBENCH: tuple(MemoryAgentBenchTask),
}
"""The types whose questions make up a benchmark's headline score, in the order of its tables."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One utterance; an image stands in it as its caption."""

    turn_id: str
    speaker: str
    text: str
    caption: str | None = None
    image_url: str | None = None
    image_query: str | None = None

    @property
    def utterance(self) -> str:
        """The text of the turn without the speaker; a shared image is described in words."""
        if self.caption is None:
            return self.text
        return f"{self.text} [shares an image: {self.caption}]".strip()

    @property
    def line(self) -> str:
        """The turn as one line of a transcript: ``Caroline: Hey Mel!``."""
        return f"{' '.join(self.speaker.split())}: {' '.join(self.utterance.split())}"


@dataclass(frozen=True)
class Session:
    """The turns of one sitting, and when it took place (``date_time`` carries a zone; UTC if unknown).

    ``observations`` are LoCoMo's own notes, which no system but ``observations`` sees. They are no
    part of what was said: a session is equal to itself without them.
    """

    number: int
    date_time: datetime
    turns: tuple[Turn, ...]
    observations: tuple[Observation, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        """Take any sequence of turns: a session is used as a key, so it keeps a tuple."""
        object.__setattr__(self, "turns", tuple(self.turns))

    @property
    def session_id(self) -> str:
        """The name that banks, logs and records use, for example ``session_3``."""
        return f"session_{self.number}"

    @cached_property
    def transcript(self) -> str:
        """Every turn as a line, in order."""
        return "\n".join(turn.line for turn in self.turns)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of what is read or searched: equal for equal sessions, whatever file they came from."""
        turns = [
            [t.turn_id, t.speaker, t.text, t.caption, *([] if t.image_query is None else [t.image_query])]
            for t in self.turns
        ]
        content = [self.number, self.date_time.isoformat(), turns]
        return hashlib.sha256(json.dumps(content, ensure_ascii=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Question:
    """One question with its gold.

    ``(conversation_id, index)`` is its identity; texts repeat. ``evidence`` holds repaired turn ids, all of
    which exist in the conversation; it may be empty, and then recall leaves the question out.
    ``labelled_groups`` are the sessions that hold the answer, where the benchmark names them apart from the
    turns (see ``evidence_group``). ``asked_at`` is when it is asked, where that matters. ``must_abstain``
    says that the conversation has no answer; ``answer`` then explains why. ``golds`` are the right answers
    where there may be several. ``nuggets`` are statements that a judge looks for one by one: BEAM's rubric,
    LoCoMo-Plus's cue, or the key points of a summary. ``movies`` are the titles that recommendations are
    matched with. ``judged_as`` is the type whose rubric grades the answer, if it is another benchmark's.
    """

    conversation_id: str
    index: int
    text: str
    category: QuestionType
    answer: str | int | None
    evidence: tuple[str, ...] = ()
    adversarial_answer: str | None = None
    asked_at: datetime | None = None
    must_abstain: bool = False
    labelled_groups: tuple[str, ...] = ()
    golds: tuple[str, ...] = ()
    nuggets: tuple[str, ...] = ()
    movies: tuple[str, ...] = field(default=(), repr=False)
    judged_as: LongMemEvalType | None = None

    @property
    def benchmark(self) -> Benchmark:
        """The benchmark that the question is scored as."""
        return _BENCHMARKS[type(self.category)]

    @property
    def dated_text(self) -> str:
        """The question as it is put to a system: with the day on which it is asked, where that matters."""
        if self.asked_at is None:
            return self.text
        return f"{self.text} (Today is {self.asked_at.day} {self.asked_at:%B %Y}.)"

    @property
    def is_answerable(self) -> bool:
        """True if the conversation has the answer, so that abstaining is wrong."""
        return not self.must_abstain and self.category is not Category.ADVERSARIAL

    @property
    def is_headline(self) -> bool:
        """True if the question counts for the headline score."""
        return self.category in HEADLINE_TYPES[self.benchmark]

    @property
    def f1_category(self) -> Category:
        """The category of LoCoMo by whose rule the official F1 of an answer is computed.

        The others have no F1 of their own: the plain one is taken, or that for what has no answer.
        """
        if isinstance(self.category, Category):
            return self.category
        return Category.SINGLE_HOP if self.is_answerable else Category.ADVERSARIAL

    @property
    def cluster(self) -> str:
        """The unit that intervals resample: the conversation, or the history that several share."""
        if self.benchmark in (Benchmark.PERSONAMEM, Benchmark.LOCOMO_PLUS):
            return self.conversation_id.rpartition("@")[0]
        return self.conversation_id

    @property
    def question_id(self) -> str:
        """The identity as one string, for example ``conv-26:q159``."""
        return f"{self.conversation_id}:q{self.index}"


_BENCHMARKS: Mapping[type, Benchmark] = {
    Category: Benchmark.LOCOMO,
    WorldQuestionType: Benchmark.LOCOMO,
    LongMemEvalType: Benchmark.LONGMEMEVAL,
    PerltqaType: Benchmark.PERLTQA,
    PersonaMemType: Benchmark.PERSONAMEM,
    BeamAbility: Benchmark.BEAM,
    PlusRelation: Benchmark.LOCOMO_PLUS,
    MemoryAgentBenchTask: Benchmark.MEMORYAGENTBENCH,
}


def without_day(dated_text: str) -> str:
    """Return a question without the day that ``dated_text`` adds.

    Example:
        >>> without_day("How long ago? (Today is 8 May 2023.)")
        'How long ago?'
    """
    return re.sub(r" \(Today is \d+ \w+ \d+\.\)$", "", dated_text)


def evidence_group(turn_id: str) -> str:
    """Name the session that a turn belongs to (in PerLTQA, the memory), which every reader puts in its id.

    An id of another form stands for itself.

    Example:
        >>> evidence_group("D8:6")
        'D8'
    """
    return turn_id.rpartition(":")[0] or turn_id


@dataclass(frozen=True)
class Conversation:
    """Two people's history in sessions, and the questions about it."""

    conversation_id: str
    speakers: tuple[str, str]
    sessions: tuple[Session, ...]
    questions: tuple[Question, ...]

    @cached_property
    def turns(self) -> dict[str, Turn]:
        """Every turn by its id, in order."""
        return {turn.turn_id: turn for session in self.sessions for turn in session.turns}

    @cached_property
    def _groups(self) -> dict[str, str]:
        by_id = {turn_id: evidence_group(turn_id) for turn_id in self.turns}
        by_session = {turn.turn_id: session.session_id for session in self.sessions for turn in session.turns}
        pairs = {(by_id[turn_id], session_id) for turn_id, session_id in by_session.items()}
        spans_sessions = len(pairs) > len(set(by_id.values()))
        return by_session if spans_sessions or any(k == v for k, v in by_id.items()) else by_id

    def turn_group(self, turn_id: str) -> str:
        """Name the session of a turn as ``evidence_group`` does, or by its id if turn ids do not tell it.

        What is no turn stands for itself.
        """
        return self._groups.get(turn_id, turn_id)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the sessions (the questions are not part of what is remembered)."""
        content = [self.conversation_id, [session.fingerprint for session in self.sessions]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def all_questions(conversations: Sequence[Conversation]) -> list[Question]:
    """List the questions of all conversations, in order."""
    return [question for conversation in conversations for question in conversation.questions]
