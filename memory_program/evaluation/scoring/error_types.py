"""The error type of a wrong answer: the pipeline stage that lost evidence, from records and bank logs.

A question needs all of its evidence turns. Each is followed from the conversation to the reader:

- *Carried.* A memory carries the turns that it was drawn from: those that it cites and that no memory that it
  replaced cited before. A merge or a split carries the turns of the old memories, and so does an update that
  cites no new turn (a rewording). Any other update replaces the content: it cites the old turns and no longer
  carries them. A turn that is shown verbatim carries itself.
- *Stored.* Carried by a memory of any version; or any turn, if the system may show turns.
- *Live.* Carried by a memory of the last version, or by an earlier one that the reader was shown; or any
  turn, if the system may show turns.
- *Shown.* Carried by a memory or a turn that the reader was shown.

The profile (core block) cites no turns: evidence that is only there counts as never stored.

An answer from elsewhere without a ranking does not tell what its reader was shown, so no stage is known.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from locomo.metrics import is_abstention
from locomo.types import Category, Conversation
from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import Operation, OperationKind
from memory_program.bank.outcomes import Answer
from memory_program.bank.stems import tokenize
from memory_program.core.json_files import Json
from memory_program.evaluation.scoring.question_scores import ScoredQuestion, verdict_score

CORRECT_F1_THRESHOLD = 0.5
"""An answer without a verdict counts as right from this official F1 on."""


class ErrorType(StrEnum):
    """The error types of wrong answers; an answer has the first one that applies.

    An answer is wrong if the first rubric with a verdict says so; without a verdict, if its official F1 is
    below ``CORRECT_F1_THRESHOLD``. A failed call gave no answer, and counts as failed only.
    """

    SHOULD_HAVE_ABSTAINED = "should have abstained"
    """The conversation has no answer to the question, and the system gave one."""

    GOLD_SUSPECT = "gold suspect"
    """The gold answer has no evidence turn; or the question is single-hop, and its gold answer is neither yes
    nor no and shares no word stem (stop words aside) with its evidence turns."""

    NEVER_STORED = "never stored"
    """Some evidence was not stored."""

    SUPERSEDED = "stored but superseded"
    """All evidence was stored, and some is no longer live: its memory was deleted or replaced."""

    NOT_RETRIEVED = "stored but not retrieved"
    """All evidence is live, and some was not shown to the reader."""

    ABSTAINED = "abstained although shown"
    """All evidence was shown, and the reader answered that there is no answer."""

    MISREAD = "retrieved but misread"
    """All evidence was shown, and the answer is wrong."""


@dataclass(frozen=True, slots=True)
class RetainedTurns:
    """The turns of one conversation that a system kept for its reader.

    ``turns_by_memory`` has the turns that each memory carries, superseded memories included;
    ``live_memory_ids`` the memories of the last version; ``verbatim_turns`` the turns that may be shown
    verbatim. If ``is_foreign``, the system is from elsewhere, and only a ranking tells what it showed.
    """

    turns_by_memory: Mapping[str, frozenset[str]]
    live_memory_ids: frozenset[str]
    verbatim_turns: frozenset[str]
    is_foreign: bool = False

    def stored_turns(self) -> frozenset[str]:
        """Return all turns that were ever stored."""
        return self.verbatim_turns.union(*self.turns_by_memory.values())

    def live_turns(self) -> frozenset[str]:
        """Return all live turns."""
        return self.verbatim_turns.union(
            *(self.turns_by_memory[memory_id] for memory_id in self.live_memory_ids)
        )

    def shown_turns(self, answer: Answer) -> set[str] | None:
        """Return all turns that the reader was shown, verbatim or in a memory; None if it is not recorded."""
        if self.is_foreign and answer.ranked is None:
            return None
        sources = {item.item_id: item.sources for item in answer.ranked or ()}
        shown: set[str] = set()
        for item_id in answer.shown:
            shown.update(self.turns_by_memory.get(item_id, sources.get(item_id, (item_id,))))
        return shown


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The error type of a wrong answer, and the evidence turns that were lost at that stage."""

    error_type: ErrorType
    lost_turns: tuple[str, ...] = ()


def collect_retained_turns(bank: MemoryBank | None, verbatim: Iterable[str]) -> RetainedTurns:
    """Collect the turns that a system kept, from its bank (None if it has none) and the turns it may show."""
    carried = trace_source_turns(bank.operations()) if bank is not None else {}
    live = [memory.memory_id for memory in bank.live()] if bank is not None else []
    return RetainedTurns(carried, frozenset(live), frozenset(verbatim))


def trace_source_turns(operations: Sequence[Operation]) -> dict[str, frozenset[str]]:
    """Return, for every memory of a log, the turns that it carries."""
    cited: dict[str, frozenset[str]] = {}
    carried: dict[str, frozenset[str]] = {}
    for operation in operations:
        inherited = frozenset[str]().union(*(cited[old] for old in operation.superseded))
        carried_before = frozenset[str]().union(*(carried[old] for old in operation.superseded))
        for memory in operation.created:
            cited[memory.memory_id] = frozenset(memory.sources)
            new = cited[memory.memory_id] - inherited
            replaces = operation.kind is OperationKind.UPDATE and new
            carried[memory.memory_id] = new if replaces else new | carried_before
    return carried


def is_wrong(item: ScoredQuestion) -> bool:
    """Return True if there is an answer and it is wrong; see ``ErrorType``."""
    if item.locomo_f1 is None:
        return False
    verdicts = (verdict_score(item, rubric) for rubric in item.judgements)
    score = next((verdict for verdict in verdicts if verdict is not None), item.locomo_f1)
    return score < CORRECT_F1_THRESHOLD


def diagnose(item: ScoredQuestion, conversation: Conversation, kept: RetainedTurns) -> Diagnosis | None:
    """Find the error type of a wrong answer; None if it is right or missing, or the stage is not known."""
    if not is_wrong(item) or item.record is None:
        return None
    if not item.is_answerable:
        return Diagnosis(ErrorType.SHOULD_HAVE_ABSTAINED)
    answer, evidence = item.record.answer, item.question.evidence
    if not evidence:
        return Diagnosis(ErrorType.GOLD_SUSPECT)
    if item.question.category is Category.SINGLE_HOP:  # others derive it: a resolved date, a conclusion
        gold = set(tokenize(str(item.question.answer)))
        stems = {stem for turn_id in evidence for stem in tokenize(conversation.turns[turn_id].line)}
        if gold - {"yes", "no"} and gold.isdisjoint(stems):
            return Diagnosis(ErrorType.GOLD_SUSPECT)
    shown = kept.shown_turns(answer)
    if shown is None:
        return None
    steps = (
        (ErrorType.NEVER_STORED, kept.stored_turns()),
        (ErrorType.SUPERSEDED, kept.live_turns() | shown),
        (ErrorType.NOT_RETRIEVED, shown),
    )
    for fault, reached in steps:
        lost = tuple(turn_id for turn_id in evidence if turn_id not in reached)
        if lost:
            return Diagnosis(fault, lost)
    return Diagnosis(ErrorType.ABSTAINED if is_abstention(answer.text) else ErrorType.MISREAD)


def summarize_diagnoses(
    scored: Sequence[ScoredQuestion], diagnoses: Sequence[Diagnosis | None]
) -> dict[str, Json]:
    """Count the wrong answers by category and error type, as JSON.

    Returns:
        For ``all`` and for each category that has answers: ``answers``, ``wrong``, and ``faults``, the number
        of wrong answers of each error type. A wrong answer whose stage is not known has none.
    """
    answers, wrong = Counter[str](), Counter[str]()
    faults: dict[str, Counter[str]] = {"all": Counter()}
    for item, diagnosis in zip(scored, diagnoses, strict=True):
        if item.locomo_f1 is None:
            continue
        for group in ("all", item.question.category.label):
            answers[group] += 1
            wrong[group] += is_wrong(item)
            faults.setdefault(group, Counter()).update([diagnosis.error_type.value] if diagnosis else [])
    return {
        group: {
            "answers": answers[group],
            "wrong": wrong[group],
            "faults": {fault.value: counts[fault.value] for fault in ErrorType},
        }
        for group, counts in faults.items()
    }
