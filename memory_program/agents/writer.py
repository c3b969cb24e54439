"""The memory writer: agents that read a session and write memories with tools."""

import contextvars
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import dspy

from locomo.types import Session
from memory_program.agents.memory_lines import render_memories
from memory_program.agents.predict_call import CallFailedError, predict
from memory_program.agents.reply_limits import CONSOLIDATION_TOKENS, writer_tokens
from memory_program.agents.signatures import (
    EMPTY_PLACEHOLDER,
    SPECIALISTS,
    Consolidate,
    WriteAll,
    with_read_tools,
)
from memory_program.agents.tool_schema import ToolOffer, without_cut_sentence
from memory_program.agents.tools import (
    CORE_TOOLS,
    MEMORY_TOOLS,
    READ_TOOLS,
    WRITE_TOOLS,
    MemoryTools,
    Refusal,
    ToolResult,
)
from memory_program.bank.budget import BUDGET_ACTOR, count_tokens, fit_memories
from memory_program.bank.memory import MEMORY_KINDS, Memory, MemoryKind, Operation, Provenance
from memory_program.bank.memory_search import ScoredMemory, filter_by_relative_score
from memory_program.bank.outcomes import CallFailure, ReplyCounts, SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.configs.groups import WriterMode
from memory_program.models.reply_settings import ReplyFormat, ReplySettings

_SHOWN_ID = re.compile(r"(?:\[|stored as |is now )(m\d+)\b", re.MULTILINE)

MAX_OPERATIONS = 30
"""The most operations of a session (MemUpdate's episode limit); those of a consolidation come on top."""

CONSOLIDATION_BATCH = 40
"""The number of the oldest memories that one consolidating call sees."""

MAX_CONSOLIDATIONS = 5
"""The most consolidating calls of a session; after them the deterministic rule takes over."""


@dataclass(frozen=True, slots=True)
class ProposedCall:
    """A tool call of an agent, the ids of the memories that it created, and if the tool refused it."""

    name: str
    args: dict[str, Any]  # Any: JSON, as the model wrote it
    created: tuple[str, ...] = ()
    is_refused: bool = False


def share_limit(wanted: Sequence[int], limit: int) -> list[int]:
    """Divide a limit fairly: who wants less than an equal part leaves the rest to the others.

    Example:
        >>> share_limit([1, 11, 11, 11], 30), share_limit([2, 3], 30)
        ([1, 10, 10, 9], [2, 3])
    """
    given = [0] * len(wanted)
    for _ in range(min(limit, sum(wanted))):
        neediest = min((i for i, want in enumerate(wanted) if given[i] < want), key=given.__getitem__)
        given[neediest] += 1
    return given


@dataclass(slots=True)
class Proposal:
    """One agent's changes to its own fork of the bank, and its errors."""

    actor: str
    calls: list[ProposedCall] = field(default_factory=list[ProposedCall])
    operations: list[Operation] = field(default_factory=list[Operation])
    results: list[ToolResult] = field(default_factory=list[ToolResult])
    tool_errors: list[str] = field(default_factory=list[str])
    failures: list[CallFailure] = field(default_factory=list[CallFailure])
    odd_dates: list[str] = field(default_factory=list[str])
    counts: ReplyCounts = field(default_factory=ReplyCounts)

    def add_reply(self, results: Sequence[ToolResult], *, is_repaired: bool, duplicates: int) -> None:
        """Add the results of a reply's calls, and count its flaws."""
        self.results += results
        self.tool_errors += [f"{self.actor}: {r.tool}: {r.text}" for r in results if r.is_error]
        refusals = [result.refusal for result in results]
        self.counts += ReplyCounts(
            repaired=int(is_repaired or any(result.is_repaired for result in results)),
            duplicates=duplicates,
            invented=refusals.count(Refusal.INVENTED),
            copied=refusals.count(Refusal.COPIED),
        )


class MemoryWriter(dspy.Module):
    """Four specialists, one per kind of memory, or one generalist for all kinds.

    The specialists run in parallel, each on a fork of the bank before the session. Their operations are
    applied in a fixed order, so that the result does not depend on their speed. A specialist whose call fails
    is counted; the others' operations still apply. Idea: MemBuilder (arXiv 2601.05488), section 3.
    """

    def __init__(
        self,
        mode: WriterMode = "specialists",
        max_turns: int = 1,
        memory_budget: int = 20_000,
        related: int = 10,
        related_floor: float = 0.3,
        replies: ReplySettings | None = None,
        *,
        checks_grounding: bool = True,
    ) -> None:
        """Make a writer.

        Args:
            mode: ``specialists``, or ``generalist``: one call a session instead of four.
            max_turns: the most calls of an agent in a session; from 2 on it has the read tools too.
            memory_budget: the most tokens of the core block and the live memories.
            related: the most stored memories of a kind that an agent is shown: those most similar to any one
                turn. A generalist is shown what all specialists would be.
            related_floor: memories that score below this share of the best one are not shown. In generated
                conversations 0.3 keeps all that should change, and drops more than half of the others.
            replies: the format and limit of replies; None for the defaults.
            checks_grounding: memories that are not from their session are refused (see ``grounding``).
        """
        super().__init__()
        self.mode = mode
        self.max_turns = max_turns
        self.memory_budget = memory_budget
        self.related = related
        self.related_floor = related_floor
        self.replies = replies or ReplySettings()
        self.saved_format: ReplyFormat | None = None  # that of a saved program, once one is loaded
        self.checks_grounding = checks_grounding
        signatures = SPECIALISTS if mode == "specialists" else {"generalist": WriteAll}
        for name, signature in signatures.items():
            if max_turns > 1 and name != "core":
                signature = with_read_tools(signature, self._writing_tools(name))
            setattr(self, name, dspy.Predict(signature))
        self.agents = tuple(signatures)
        self.consolidate = dspy.Predict(Consolidate)

    def forward(self, space: MemorySpace, session: Session) -> dspy.Prediction:
        """Write a session's memories into the bank of a space.

        Args:
            space: the memories so far; its bank is changed once all agents are done.
            session: the session to remember; it is not archived here.

        Returns:
            a prediction with ``record`` (a ``SessionRecord``), ``operations`` (those applied) and
            ``proposals`` (one for each agent).
        """
        space.index.refresh(space.bank)  # once, not in every agent's fork
        outer_trace: list[object] | None = dspy.settings.trace
        traces: list[list[object]] = [[] for _ in self.agents]

        def run(name: str, trace: list[object]) -> Proposal:
            with dspy.context(trace=trace if outer_trace is not None else None):
                return self.propose(name, space, session)

        with ThreadPoolExecutor(len(self.agents), thread_name_prefix="specialist") as pool:
            futures = [
                pool.submit(contextvars.copy_context().run, run, name, trace)
                for name, trace in zip(self.agents, traces, strict=True)
            ]
            proposals = [future.result() for future in futures]
        if outer_trace is not None:  # it has the calls in the agents' order
            outer_trace.extend(entry for trace in traces for entry in trace)
            del outer_trace[: max(0, len(outer_trace) - dspy.settings.max_trace_size)]
        return self.apply_proposals(space, session, proposals)

    def apply_proposals(
        self, space: MemorySpace, session: Session, proposed: Sequence[Proposal]
    ) -> dspy.Prediction:
        """Apply proposals that were made on forks of the space, in order; then enforce the memory budget.

        Returns:
            as ``forward``.
        """
        start, proposals = space.bank.version, list(proposed)
        rooms = share_limit([len(proposal.operations) for proposal in proposals], MAX_OPERATIONS)
        over_limit: list[str] = []  # of the session: no agent is at fault for what the others wrote
        for proposal, room in zip(proposals, rooms, strict=True):
            applied = space.bank.rebase(proposal.operations[:room])
            if refused := len(proposal.operations) - len(applied):
                over_limit.append(
                    f"{proposal.actor}: {refused} operations over the limit of {MAX_OPERATIONS} a session"
                )
        left_out = tuple[Memory, ...]()
        if self._memories_over_budget(space):
            proposals.append(self._consolidate(space, session))
            left_out = self._memories_over_budget(space)
            for memory in left_out:  # log and record keep them
                reason = f"over the memory budget of {self.memory_budget} tokens"
                space.bank.delete(memory.memory_id, Provenance(BUDGET_ACTOR, session.session_id, reason))
        record = SessionRecord(
            session_id=session.session_id,
            operations=space.bank.version - start,
            tool_calls=sum(len(proposal.results) for proposal in proposals),
            tool_errors=(*(error for p in proposals for error in p.tool_errors), *over_limit),
            failures=tuple(failure for proposal in proposals for failure in proposal.failures),
            left_out=tuple(memory.memory_id for memory in left_out),
            counts=sum((proposal.counts for proposal in proposals), ReplyCounts()),
            odd_dates=tuple(odd_date for proposal in proposals for odd_date in proposal.odd_dates),
        )
        operations = space.bank.operations(since=start)
        return dspy.Prediction(record=record, operations=operations, proposals=proposals)

    def agent_inputs(self, name: str, space: MemorySpace, session: Session) -> dict[str, str]:
        """Return the inputs of an agent's first call for a session."""
        inputs = {
            "core_memory": space.bank.core or EMPTY_PLACEHOLDER,
            "session_date": format_session_date(session),
            "session": session.transcript,
        }
        if name != MemoryKind.CORE:
            inputs["related_memories"] = render_memories(self.retrieve_related(name, space, session))
        return inputs

    def retrieve_related(self, name: str, space: MemorySpace, session: Session) -> list[Memory]:
        """Find the stored memories that are most similar to any one turn of the session, best last.

        Searching with the whole session would rank memories first that share common words with many turns.
        """
        turns, own_kind = [turn.line for turn in session.turns], specialist_memory_kind(name)
        found: list[ScoredMemory] = []
        for kind in MEMORY_KINDS if own_kind is None else (own_kind,):  # a generalist sees what all would see
            of_kind = space.index.search_any(space.bank, turns, self.related, kind)
            found += filter_by_relative_score(of_kind, self.related_floor)
        found.sort(key=lambda scored: scored.score, reverse=True)
        return [scored.memory for scored in reversed(found)]

    def propose(self, name: str, space: MemorySpace, session: Session) -> Proposal:
        """Run one agent on its own fork of the space; a failed call is part of its proposal."""
        kind, fork = specialist_memory_kind(name), space.fork()
        tools = MemoryTools(fork, session, name, kind, checks_grounding=self.checks_grounding)
        allowed, inputs = self.allowed_tools(name), self.agent_inputs(name, space, session)
        proposal = Proposal(name, operations=tools.operations, odd_dates=tools.odd_dates)
        limit = writer_tokens(name, inputs["session"])
        for _ in range(self.max_turns):
            shown = "\n".join(f"{r.tool}: {r.text}" for r in proposal.results) or EMPTY_PLACEHOLDER
            known = _SHOWN_ID.findall(f"{inputs.get('related_memories', '')}\n{shown}")
            live = [fork.bank.get(one) for one in dict.fromkeys(known) if one in fork.bank]
            ids = tuple(memory.memory_id for memory in live if kind is None or memory.kind is kind)
            offer = ToolOffer(tuple(allowed), kind, ids, has_profile=bool(fork.bank.core))
            repaired = list[str]()
            try:
                reply = predict(
                    f"writer.{name}",
                    getattr(self, name),
                    self.replies,
                    limit,
                    offer=offer,
                    repaired=repaired,
                    tool_results=shown,
                    **inputs,
                )
            except CallFailedError as error:
                proposal.failures.append(error.failure)
                break
            new = list[ToolResult]()
            calls = _without_duplicates(reply.tool_calls)
            for call in calls:
                before = len(tools.operations)
                new.append(self._run_call(call, tools, allowed))
                created = [m.memory_id for done in tools.operations[before:] for m in done.created]
                made = ProposedCall(call.name, call.args, tuple(created), new[-1].is_error)
                proposal.calls.append(made)
            repeated = len(reply.tool_calls.tool_calls) - len(calls)
            proposal.add_reply(new, is_repaired=bool(repaired), duplicates=repeated)
            if not any(result.tool in READ_TOOLS or result.is_error for result in new):
                break
        return proposal

    def _run_call(
        self, call: dspy.ToolCalls.ToolCall, tools: MemoryTools, allowed: Sequence[str]
    ) -> ToolResult:
        is_json = self.replies.format is ReplyFormat.JSON
        arguments = without_cut_sentence(call.args) if is_json else call.args
        if arguments is None:
            message = (
                "the text was cut at its limit of characters, so nothing is changed: write a shorter one"
            )
            return ToolResult(call.name, message, Refusal.MALFORMED)
        return tools.call(call.name, arguments, allowed)

    def allowed_tools(self, name: str) -> Sequence[str]:
        """Return the names of an agent's tools."""
        names = self._writing_tools(name)
        return (*READ_TOOLS, *names) if self.max_turns > 1 and name != "core" else names

    @staticmethod
    def _writing_tools(name: str) -> tuple[str, ...]:
        return {"core": CORE_TOOLS, "generalist": WRITE_TOOLS}.get(name, MEMORY_TOOLS)

    def _consolidate(self, space: MemorySpace, session: Session) -> Proposal:
        """Ask for merges and deletions as long as the memory is over its budget and gets smaller."""
        total = Proposal("consolidation")
        names = ("merge_memory", "delete_memory")
        for _ in range(MAX_CONSOLIDATIONS):
            surplus = self._surplus_tokens(space)
            if not surplus:
                break
            tools = MemoryTools(space, session, total.actor, checks_grounding=self.checks_grounding)
            oldest = space.bank.live()[:CONSOLIDATION_BATCH]
            repaired = list[str]()
            try:
                reply = predict(
                    "writer.consolidate",
                    self.consolidate,
                    self.replies,
                    CONSOLIDATION_TOKENS,
                    offer=ToolOffer(names, shown_ids=tuple(memory.memory_id for memory in oldest)),
                    repaired=repaired,
                    tokens_to_save=surplus,
                    memories=render_memories(oldest),
                )
            except CallFailedError as error:
                total.failures.append(error.failure)
                break
            calls = _without_duplicates(reply.tool_calls)
            results = [self._run_call(call, tools, names) for call in calls]
            repeated = len(reply.tool_calls.tool_calls) - len(calls)
            total.add_reply(results, is_repaired=bool(repaired), duplicates=repeated)
            if self._surplus_tokens(space) >= surplus:
                break
        return total

    def _memories_over_budget(self, space: MemorySpace) -> tuple[Memory, ...]:
        return fit_memories(space.bank.live(), self.memory_budget, space.bank.core).left_out

    def _surplus_tokens(self, space: MemorySpace) -> int:
        return sum(count_tokens(memory.line) for memory in self._memories_over_budget(space))


def specialist_memory_kind(agent: str) -> MemoryKind | None:
    """Return the kind of memory that an agent writes; None for a generalist."""
    return MemoryKind(agent) if agent in SPECIALISTS else None


def _without_duplicates(reply: dspy.ToolCalls) -> list[dspy.ToolCalls.ToolCall]:
    """Return the calls of a reply, each once."""
    calls: list[dspy.ToolCalls.ToolCall] = []
    for call in reply.tool_calls:
        if not any((call.name, call.args) == (other.name, other.args) for other in calls):
            calls.append(call)
    return calls


def format_session_date(session: Session) -> str:
    """Write a session's date with the weekday and in figures: ``Monday, 8 May 2023 (2023-05-08), 13:56``."""
    moment = session.date_time
    return f"{moment:%A}, {moment.day} {moment:%B %Y} ({moment:%Y-%m-%d}), {moment:%H:%M}"
