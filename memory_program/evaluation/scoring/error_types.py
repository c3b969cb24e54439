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
from memory_program.evaluation.scoring.question_scores import Json, ScoredQuestion, correctness

RIGHT_FROM = 0.5
"""The official F1 from which an answer without a verdict counts as right."""


class Fault(StrEnum):
    """What is wrong with a wrong answer: the first of these that holds.

    An answer is wrong if the first rubric with a verdict says so; without a verdict, if its official F1 is
    below ``RIGHT_FROM``. A call that failed gave no answer, and is counted as failed only.
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
class Kept:
    """What a system kept of one conversation for its reader.

    ``carried`` are the turns that each memory of the log carries, superseded ones included; ``live`` the ids
    of the last version's memories; ``verbatim`` the turns that the system may show word for word.
    """

    carried: Mapping[str, frozenset[str]]
    live: frozenset[str]
    verbatim: frozenset[str]

    def stored(self) -> frozenset[str]:
        """Every turn that was ever stored."""
        return self.verbatim.union(*self.carried.values())

    def live_turns(self) -> frozenset[str]:
        """Every turn that is live."""
        return self.verbatim.union(*(self.carried[memory_id] for memory_id in self.live))

    def shown(self, answer: Answer) -> set[str]:
        """Every turn that something which the reader was shown carries."""
        sources = {item.item_id: item.sources for item in answer.ranked or ()}
        shown: set[str] = set()
        for item_id in answer.shown:
            shown.update(self.carried.get(item_id, sources.get(item_id, (item_id,))))
        return shown


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The fault of a wrong answer, and the evidence turns that were lost at that step."""

    fault: Fault
    lost: tuple[str, ...] = ()


def kept_of(bank: MemoryBank | None, verbatim: Iterable[str]) -> Kept:
    """Say what a system kept, given its bank (None if it has none) and the turns that it may show."""
    carried = turns_carried(bank.operations()) if bank is not None else {}
    live = [memory.memory_id for memory in bank.live()] if bank is not None else []
    return Kept(carried, frozenset(live), frozenset(verbatim))


def turns_carried(operations: Sequence[Operation]) -> dict[str, frozenset[str]]:
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
    """Say whether there is an answer and it is wrong; see ``Fault``."""
    if item.locomo_f1 is None:
        return False
    verdicts = (correctness(item, rubric) for rubric in item.judgements)
    score = next((verdict for verdict in verdicts if verdict is not None), item.locomo_f1)
    return score < RIGHT_FROM


def diagnose(item: ScoredQuestion, conversation: Conversation, kept: Kept) -> Diagnosis | None:
    """Find out why an answer is wrong; None where it is right, or there is none."""
    if not is_wrong(item) or item.record is None:
        return None
    if not item.is_answerable:
        return Diagnosis(Fault.SHOULD_HAVE_ABSTAINED)
    if _is_gold_suspect(item, conversation):
        return Diagnosis(Fault.GOLD_SUSPECT)
    answer, evidence = item.record.answer, item.question.evidence
    steps = (
        (Fault.NEVER_STORED, kept.stored()),
        (Fault.SUPERSEDED, kept.live_turns()),
        (Fault.NOT_RETRIEVED, kept.shown(answer)),
    )
    for fault, reached in steps:
        lost = _missing(evidence, reached)
        if lost:
            return Diagnosis(fault, lost)
    return Diagnosis(Fault.ABSTAINED if is_abstention(answer.text) else Fault.MISREAD)


def diagnosis_summary(
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
            faults.setdefault(group, Counter()).update([diagnosis.fault.value] if diagnosis else [])
    return {
        group: {
            "answers": answers[group],
            "wrong": counts.total(),
            "faults": {fault.value: counts[fault.value] for fault in Fault},
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


def _missing(evidence: Sequence[str], reached: Collection[str]) -> tuple[str, ...]:
    return tuple(turn_id for turn_id in evidence if turn_id not in reached)
