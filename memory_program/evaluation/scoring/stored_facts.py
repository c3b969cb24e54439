"""The quality of what a system stored, measured against facts that are known.

The metrics are those of HaluMem (Chen et al. 2025, arXiv 2511.03506: memory extraction and updating),
computed without a judge. On generated conversations the facts are the truth. On LoCoMo they are its own notes
(``observation``), which are neither complete nor about changes: precision there is agreement with the notes,
and changes, stale and invented memories are not known.

A text states a fact if it holds every word of the fact's values and its subject (of a note: 40 % of its
words), negates if the fact does, and shares more words with it than with any other fact (F1 over stems);
further facts need 80 % of their words. Dates are not compared.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from locomo.types import Conversation
from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import Provenance
from memory_program.bank.memory_search import MemoryIndex
from memory_program.bank.stems import tokenize
from memory_program.core.json_files import Json
from memory_program.evaluation.scoring.bank_growth import BanksByConversation
from memory_program.evaluation.scoring.question_scores import BootstrapSampler
from memory_program.worlds import Action, World

_NEGATIONS = frozenset({"anymore", "cannot", "never", "no", "not", "stopped"})
_LEAST_COVERAGE, _FURTHER_FACT_COVERAGE, _NOTE_COVERAGE = 0.5, 0.8, 0.4
_SEARCHED = 10
_RESAMPLES = 1000

_OUTCOMES = ("correct", "duplicate", "stale", "invented")
_Group = tuple[str, str]
"""What is counted: ("all", ""), or "agent" or "session" with its name."""


@dataclass(frozen=True)
class KnownFact:
    """A fact that a memory may state; ``required`` are the stems that it cannot do without."""

    text: str
    kind: str
    session_id: str
    required: frozenset[str]
    least_coverage: float = _LEAST_COVERAGE

    @cached_property
    def stems(self) -> frozenset[str]:
        """The stems of the text."""
        return frozenset(tokenize(self.text))

    @cached_property
    def is_negated(self) -> bool:
        """True if the text denies something."""
        return _is_negated(self.text)


@dataclass(frozen=True)
class KnownChange:
    """A change that is due in a session: the memory of ``old`` becomes ``new``, or ends."""

    session_id: str
    old: str
    new: str | None


@dataclass(frozen=True)
class KnownFacts:
    """The facts of a conversation: all that were ever true, those true at the end, and the changes.

    ``live_after`` has the texts that are true after each session; empty if changes are not known.
    """

    facts: tuple[KnownFact, ...]
    live: frozenset[str]
    changes: tuple[KnownChange, ...] = ()
    live_after: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def is_truth(self) -> bool:
        """True if the facts are all that is true, so that anything else is invented."""
        return bool(self.live_after)


def facts_of_world(world: World, sessions: int) -> KnownFacts:
    """List the facts of a generated conversation, as of its first ``sessions`` sessions."""
    told = [operation for operation in world.operations if operation.session_number <= sessions]
    facts = {
        fact.text: KnownFact(
            fact.text,
            fact.schema.kind,
            f"session_{fact.session_number}",
            frozenset(stem for value in (*fact.slots.values(), fact.subject) for stem in tokenize(value)),
        )
        for fact in world.facts.values()
        if fact.session_number <= sessions
    }
    changes = [
        KnownChange(f"session_{o.session_number}", o.old_text, None if o.action is Action.DELETE else o.text)
        for o in told
        if o.supersedes
    ]
    live_after = {
        f"session_{number}": frozenset(fact.text for fact in world.live_facts_after(number))
        for number in range(1, sessions + 1)
    }
    return KnownFacts(tuple(facts.values()), live_after[f"session_{sessions}"], tuple(changes), live_after)


def facts_of_notes(conversation: Conversation) -> KnownFacts | None:
    """List LoCoMo's own notes on a conversation; None if it has none."""
    told_in: dict[str, str] = {}
    for session in conversation.sessions:
        for note in session.observations:
            told_in.setdefault(note.text, session.session_id)
    facts = tuple(
        KnownFact(text, "note", told, frozenset(), _NOTE_COVERAGE) for text, told in told_in.items()
    )
    return KnownFacts(facts, frozenset(told_in)) if facts else None


@dataclass(frozen=True)
class _Stored:
    """A live memory, or a line of the profile: its writer, its outcome and the facts that it states.

    ``is_unasked``: none of a memory's turns is evidence of a question of the conversation, if any has some.
    """

    writer: Provenance
    outcome: str
    facts: tuple[str, ...]
    is_found: bool = False
    is_unasked: bool = False


class _FactMatcher:
    """Finds the facts that a text states; each text is compared once."""

    def __init__(self, known: KnownFacts) -> None:
        self._facts = known.facts
        self._found: dict[str, tuple[str, ...]] = {}

    def stated(self, text: str) -> tuple[str, ...]:
        """List the facts that a text states, the one that it shares most with first."""
        if text in self._found:
            return self._found[text]
        stems, negated = frozenset(tokenize(text)), _is_negated(text)
        scored: list[tuple[float, float, str]] = []
        for fact in self._facts:
            shared = len(stems & fact.stems)
            coverage = shared / len(fact.stems) if fact.stems else 0.0
            if coverage < fact.least_coverage or not fact.required <= stems or fact.is_negated != negated:
                continue
            scored.append((2 * shared / (len(stems) + len(fact.stems)), coverage, fact.text))
        scored.sort(key=lambda found: -found[0])
        if any(fact_text == text for _, _, fact_text in scored):  # another fact only shares its words
            scored = [(1.0, 1.0, text)]
        self._found[text] = tuple(
            fact_text
            for place, (_, coverage, fact_text) in enumerate(scored)
            if place == 0 or coverage >= _FURTHER_FACT_COVERAGE
        )
        return self._found[text]


def measure_stored_facts(
    conversations: Sequence[Conversation],
    banks: BanksByConversation,
    worlds: Sequence[World],
    resampling: BootstrapSampler,
) -> Json | None:
    """Measure what the banks of a system hold; None without banks, or if no facts are known.

    Returns:
        ``reference`` ("truth" or "notes"); ``all``, ``by_agent`` and ``by_session``, each with ``precision``
        (correct memories / live memories), ``recall`` (facts stated / facts) and ``f1`` with 95 % intervals
        by conversation, and counts: ``memories``, each outcome, ``facts``, ``stated``, ``unasked`` (memories
        whose turns are evidence of no question) and ``stale_found``: stale memories among the first 10
        that a search for the present fact finds. An agent's facts are those of its kind, where one writes a
        kind. A session's memories are those that it wrote and its facts those that it told, as far as they
        are live at the end. ``changes`` counts updates and deletions: ``done``, ``missed`` (the old fact is
        still there), ``wrong`` (it is gone and the new one is not there; of deletions: what was still true
        was lost).
    """
    by_name = {world.conversation.conversation_id: world for world in worlds}
    found: list[tuple[KnownFacts, list[_Stored]]] = []
    changes = {kind: Counter[str]() for kind in ("update", "delete")}
    is_truth = False
    for conversation in conversations:
        bank, world = banks.get(conversation.conversation_id), by_name.get(conversation.conversation_id)
        if world is not None:
            known = facts_of_world(world, len(conversation.sessions))
        else:
            known = facts_of_notes(conversation)
        if bank is None or known is None:
            continue
        is_truth = known.is_truth
        matcher = _FactMatcher(known)
        evidence = {turn_id for question in conversation.questions for turn_id in question.evidence}
        found.append((known, list(_classify(bank, known, matcher, evidence))))
        for kind, outcome in _follow_changes(bank, conversation, known, matcher):
            changes[kind][outcome] += 1
    if not found:
        return None
    agents = sorted({one.writer.actor for _, stored in found for one in stored})
    sessions = dict.fromkeys(session.session_id for talk in conversations for session in talk.sessions)
    counted = [_count(stored, known, agents, sessions) for known, stored in found]
    return {
        "reference": "truth" if is_truth else "notes",
        "all": _summarize(counted, ("all", ""), resampling),
        "by_agent": {agent: _summarize(counted, ("agent", agent), resampling) for agent in agents},
        "by_session": {name: _summarize(counted, ("session", name), resampling) for name in sessions},
        "changes": {
            kind: {name: outcomes[name] for name in ("done", "missed", "wrong")}
            for kind, outcomes in changes.items()
        }
        if is_truth
        else None,
    }


def _classify(
    bank: MemoryBank, known: KnownFacts, matcher: _FactMatcher, evidence: Set[str]
) -> Iterator[_Stored]:
    """Say of each live memory and line of the profile what it is, in the order of their writing."""
    operations = bank.operations()
    writers = {memory.memory_id: o.provenance for o in operations for memory in o.created}
    of_lines: dict[str, Provenance] = {}
    for core, writer in ((o.core, o.provenance) for o in operations if o.core is not None):
        of_lines = {line: of_lines.get(line, writer) for line in core.splitlines()}
    index = MemoryIndex()
    present = {change.old: change.new for change in known.changes}
    claimed = set[str]()
    lines = [(line, of_lines[line], "", set[str]()) for line in bank.core.splitlines() if line.strip()]
    live = [(m.text, writers[m.memory_id], m.memory_id, set(m.sources)) for m in bank.live()]
    for text, writer, memory_id, turns in [*live, *lines]:
        is_unasked = bool(memory_id and evidence) and not turns & evidence
        one = partial(_Stored, writer, is_unasked=is_unasked)
        stated = matcher.stated(text)
        true = tuple(fact for fact in stated if fact in known.live)
        if true:
            outcome = "duplicate" if claimed.issuperset(true) else "correct"
            claimed.update(true)
            yield one(outcome, true)
        elif stated:
            asked = present.get(stated[0]) or stated[0]
            hits = index.search(bank, asked, _SEARCHED) if memory_id else []
            found = not memory_id or any(hit.memory.memory_id == memory_id for hit in hits)
            yield one("stale", stated, is_found=found)
        else:
            yield one("invented" if known.is_truth else "other", ())


def _count(
    stored: Sequence[_Stored], known: KnownFacts, agents: Iterable[str], sessions: Iterable[str]
) -> dict[_Group, Counter[str]]:
    """Count the memories and facts of a conversation: of all, of each agent and of each session.

    An agent or a session that wrote nothing has its facts, too.
    """
    facts = [fact for fact in known.facts if fact.text in known.live]
    stated = {text for one in stored if one.outcome == "correct" for text in one.facts}
    groups = {
        ("all", ""): (stored, facts),
        **{
            ("agent", agent): (
                [one for one in stored if one.writer.actor == agent],
                [fact for fact in facts if fact.kind == agent.rpartition(".")[2]],
            )
            for agent in agents
        },
        **{
            ("session", session_id): (
                [one for one in stored if one.writer.session_id == session_id],
                [fact for fact in facts if fact.session_id == session_id],
            )
            for session_id in sessions
        },
    }
    counted: dict[_Group, Counter[str]] = {}
    for group, (memories, own) in groups.items():
        counted[group] = Counter(one.outcome for one in memories)
        counted[group].update(
            memories=len(memories),
            stale_found=sum(one.is_found for one in memories),
            unasked=sum(one.is_unasked for one in memories),
            facts=len(own),
            stated=sum(fact.text in stated for fact in own),
        )
    return counted


def _follow_changes(
    bank: MemoryBank, conversation: Conversation, known: KnownFacts, matcher: _FactMatcher
) -> Iterator[tuple[str, str]]:
    """Give the outcome of each change: ("update" or "delete", "done", "missed" or "wrong")."""
    if not known.is_truth:
        return
    live: dict[str, tuple[str, ...]] = {}
    core: tuple[str, ...] = ()
    operations = bank.operations()
    for session in conversation.sessions:
        before = {fact for facts in live.values() for fact in facts} | set(core)
        lost_by = dict[str, str]()
        for operation in (o for o in operations if o.provenance.session_id == session.session_id):
            gone = {fact for memory_id in operation.superseded for fact in live.pop(memory_id, ())}
            live |= {memory.memory_id: matcher.stated(memory.text) for memory in operation.created}
            if operation.core is not None:
                kept = tuple(f for line in operation.core.splitlines() for f in matcher.stated(line))
                gone |= set(core) - set(kept)
                core = kept
            kind = "update" if operation.created or operation.core else "delete"
            lost_by |= dict.fromkeys(gone, kind)
        after = {fact for facts in live.values() for fact in facts} | set(core)
        changes = [change for change in known.changes if change.session_id == session.session_id]
        true = known.live_after[session.session_id]
        for change in changes:
            kind = "delete" if change.new is None else "update"
            if change.old in after and change.old not in true:
                yield kind, "missed"
            elif change.new is not None:
                # a fact may change twice in a session: what came in between need not be stored
                is_passed = change.new not in true
                stored = change.new in after or is_passed
                yield kind, "done" if stored else ("wrong" if change.old in before else "missed")
            elif change.old in before:
                yield kind, "done"
        for fact, kind in lost_by.items():
            if fact in true and fact not in after:
                yield kind, "wrong"


def _summarize(
    counted: Sequence[dict[_Group, Counter[str]]], group: _Group, resampling: BootstrapSampler
) -> Json:
    """Sum up a group's counts of conversations, with ratios and their intervals by conversation."""
    counts = [of_group[group] for of_group in counted]
    names = ("correct", "memories", "stated", "facts")
    table = np.array([[found[name] for name in names] for found in counts], dtype=float)
    rng = resampling.rng("stored_facts", group[1] or group[0])
    draws = rng.integers(len(table), size=(_RESAMPLES, len(table)))
    totals = np.vstack([table.sum(axis=0), table[draws].sum(axis=1)])
    with np.errstate(invalid="ignore", divide="ignore"):
        precision, recall = totals[:, 0] / totals[:, 1], totals[:, 2] / totals[:, 3]
        f1 = 2 * precision * recall / (precision + recall)
    f1[(precision == 0) | (recall == 0)] = 0.0
    summed = sum(counts, Counter())
    return {
        "precision": _interval(precision, len(table)),
        "recall": _interval(recall, len(table)),
        "f1": _interval(f1, len(table)),
        **{
            name: summed[name]
            for name in ("memories", *_OUTCOMES, "other", "facts", "stated", "stale_found", "unasked")
        },
    }


def _interval(values: np.ndarray, clusters: int) -> Json:
    known = values[1:][~np.isnan(values[1:])]
    if np.isnan(values[0]):
        return {"value": None, "low": None, "high": None}
    low, high = np.percentile(known, [2.5, 97.5]) if clusters > 1 else (None, None)
    return {
        "value": float(values[0]),
        "low": None if low is None else float(low),
        "high": None if high is None else float(high),
    }


def _is_negated(text: str) -> bool:
    words = [word.strip(".,;:!").lower().replace("’", "'") for word in text.split()]
    return any(word in _NEGATIONS or word.endswith("n't") for word in words)
