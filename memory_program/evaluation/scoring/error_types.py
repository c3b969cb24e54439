"""Why an answer is wrong: at which step the evidence was lost, from records and the bank's log alone.

A question needs all its evidence turns. Each is followed from the conversation to the reader:

- *Carried.* A memory carries the turns that it was drawn from: those that it cites and that no memory which
  it replaced cited before it. A merge or a split carries on what the old memories carried, and so does an
  update that cites no new turn, a rewording. Any other update replaces what was said: it cites the old turns
  and carries them no more. A turn that is shown word for word carries itself.
- *Stored.* A turn that a memory of the log carried at any version; any turn, where a system may show turns.
- *Live.* A turn that a memory of the last version carries; any turn, where a system may show turns.
- *Shown.* A turn that a memory or a turn among those that the reader was shown carries.

The profile (core block) cites no turns: what stands nowhere else counts as never stored.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
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
"""The official F1 from which an answer without a verdict counts as right."""


class ErrorType(StrEnum):
    """What is wrong with a wrong answer: the first of these that holds.

    An answer is wrong if the first rubric with a verdict says so; without a verdict, if its official F1 is
    below ``CORRECT_F1_THRESHOLD``. A call that failed gave no answer, and is counted as failed only.
    """

    SHOULD_HAVE_ABSTAINED = "should have abstained"
    """The question has no answer in the conversation, and got one."""

    GOLD_SUSPECT = "gold suspect"
    """The gold names no evidence turn; or the question is single-hop, and the gold, which is neither yes nor
    no, shares no word with its evidence turns. Stop words do not count, and words count as stems."""

    NEVER_STORED = "never stored"
    """Some evidence turn is not stored."""

    SUPERSEDED = "stored but superseded"
    """All evidence is stored, and some is no longer live: what carried it was deleted or replaced."""

    NOT_RETRIEVED = "stored but not retrieved"
    """All evidence is live, and some was not shown to the reader."""

    ABSTAINED = "abstained although shown"
    """All evidence was shown, and the answer says that there is none."""

    MISREAD = "retrieved but misread"
    """All evidence was shown, and the answer is another one."""


@dataclass(frozen=True, slots=True)
class RetainedTurns:
    """What a system kept of one conversation for its reader.

    ``turns_by_memory`` are the turns that each memory of the log carries, superseded ones included; ``live_memory_ids`` the ids
    of the last version's memories; ``verbatim_turns`` the turns that the system may show word for word.
    """

    turns_by_memory: Mapping[str, frozenset[str]]
    live_memory_ids: frozenset[str]
    verbatim_turns: frozenset[str]

    def stored_turns(self) -> frozenset[str]:
        """Every turn that was ever stored."""
        return self.verbatim_turns.union(*self.turns_by_memory.values())

    def live_turns(self) -> frozenset[str]:
        """Every turn that is live."""
        return self.verbatim_turns.union(
            *(self.turns_by_memory[memory_id] for memory_id in self.live_memory_ids)
        )

    def shown_turns(self, answer: Answer) -> set[str]:
        """Every turn that something which the reader was shown carries."""
        sources = {item.item_id: item.sources for item in answer.ranked or ()}
        shown: set[str] = set()
        for item_id in answer.shown:
            shown.update(self.turns_by_memory.get(item_id, sources.get(item_id, (item_id,))))
        return shown


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The fault of a wrong answer, and the evidence turns that were lost at that step."""

    error_type: ErrorType
    lost_turns: tuple[str, ...] = ()


def collect_retained_turns(bank: MemoryBank | None, verbatim: Iterable[str]) -> RetainedTurns:
    """Say what a system kept, given its bank (None if it has none) and the turns that it may show."""
    carried = trace_source_turns(bank.operations()) if bank is not None else {}
    live = [memory.memory_id for memory in bank.live()] if bank is not None else []
    return RetainedTurns(carried, frozenset(live), frozenset(verbatim))


def trace_source_turns(operations: Sequence[Operation]) -> dict[str, frozenset[str]]:
    """Follow the turns of a log: for every memory that it made, the turns that the memory carries."""
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
    """Say whether there is an answer and it is wrong; see ``ErrorType``."""
    if item.locomo_f1 is None:
        return False
    verdicts = (verdict_score(item, rubric) for rubric in item.judgements)
    score = next((verdict for verdict in verdicts if verdict is not None), item.locomo_f1)
    return score < CORRECT_F1_THRESHOLD


def diagnose(item: ScoredQuestion, conversation: Conversation, kept: RetainedTurns) -> Diagnosis | None:
    """Find out why an answer is wrong; None where it is right, or there is none."""
    if not is_wrong(item) or item.record is None:
        return None
    if not item.is_answerable:
        return Diagnosis(ErrorType.SHOULD_HAVE_ABSTAINED)
    if _is_gold_suspect(item, conversation):
        return Diagnosis(ErrorType.GOLD_SUSPECT)
    answer, evidence = item.record.answer, item.question.evidence
    steps = (
        (ErrorType.NEVER_STORED, kept.stored_turns()),
        (ErrorType.SUPERSEDED, kept.live_turns()),
        (ErrorType.NOT_RETRIEVED, kept.shown_turns(answer)),
    )
    for fault, reached in steps:
        lost = _unreached_turns(evidence, reached)
        if lost:
            return Diagnosis(fault, lost)
    return Diagnosis(ErrorType.ABSTAINED if is_abstention(answer.text) else ErrorType.MISREAD)


def summarize_diagnoses(
    scored: Sequence[ScoredQuestion], diagnoses: Sequence[Diagnosis | None]
) -> dict[str, Json]:
    """Count the wrong answers by category and fault, as JSON.

    Returns:
        for ``all`` and for each category that has answers: ``answers``, ``wrong``, and ``faults``, how many
        of the wrong answers have each fault.
    """
    answers = Counter[str]()
    faults: dict[str, Counter[str]] = {"all": Counter()}
    for item, diagnosis in zip(scored, diagnoses, strict=True):
        if item.locomo_f1 is None:
            continue
        for group in ("all", item.question.category.label):
            answers[group] += 1
            faults.setdefault(group, Counter()).update([diagnosis.error_type.value] if diagnosis else [])
    return {
        group: {
            "answers": answers[group],
            "wrong": counts.total(),
            "faults": {fault.value: counts[fault.value] for fault in ErrorType},
        }
        for group, counts in faults.items()
    }


def _is_gold_suspect(item: ScoredQuestion, conversation: Conversation) -> bool:
    question = item.question
    if not question.evidence:
        return True
    if question.category is not Category.SINGLE_HOP:
        return False  # dates are resolved, and other golds concluded, from what the turns say
    gold = set(tokenize(str(question.answer)))
    told = (tokenize(conversation.turns[turn_id].line) for turn_id in question.evidence)
    return bool(gold - {"yes", "no"}) and gold.isdisjoint(stem for stems in told for stem in stems)


def _unreached_turns(evidence: Sequence[str], reached: Collection[str]) -> tuple[str, ...]:
    return tuple(turn_id for turn_id in evidence if turn_id not in reached)
