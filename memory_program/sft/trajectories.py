"""Expert trajectories: what a good writer did, session by session, as material for supervised fine-tuning.

A conversation is one JSON-lines file; a line holds a session: the memory before it, what each agent was asked
and replied, and what that did. A run that was stopped goes on after the last whole line.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from locomo.types import Conversation, Question, Session
from memory_program import __version__
from memory_program.agents.program import MemoryProgram, writer_state
from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import operation_from_json, operation_to_json
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import RecordError
from memory_program.core.parallel import side_by_side
from memory_program.evaluation.item_records import content_hash
from memory_program.models.model_names import known_as
from memory_program.rl.episode_json import episode_to_json
from memory_program.rl.episodes import Episode, questions_by_session
from memory_program.rl.groups import messages_of
from memory_program.rl.rollouts import Rollout, policy_of, sampling_program, write
from memory_program.sft.session_lines import Line, append_line, check_done, file_of, read_lines


@dataclass(frozen=True, slots=True)
class Collected:
    """How many sessions of a conversation there are now, and why there are not more."""

    conversation_id: str
    sessions: int
    failure: str | None = None


def collect(
    program: MemoryProgram,
    conversations: Sequence[Conversation],
    folder: Path,
    *,
    threads: int,
    skip_existing: bool = False,
    temperature: float = 0.0,
    max_tokens: int = 4096,
    on_session: Callable[[Line], None] = lambda line: None,
) -> list[Collected]:
    """Let a program remember conversations, several side by side, and write down what it does.

    Args:
        program: the expert; the agents of its writer share one model.
        conversations: what is remembered.
        folder: where each conversation has its file; what is there is gone on with.
        threads: conversations remembered at once.
        skip_existing: leave a conversation alone as soon as it has a file.
        temperature: of the sampling.
        max_tokens: of one reply.
        on_session: told every line that is written.

    Raises:
        ConfigError: the agents have no model, or several.
        RecordError: a file holds other sessions than its conversation, or what another model did, or this one
            under other prompts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sampled = sampling_program(program, temperature, max_tokens)
    expert = _Expert(known_as(policy_of(program).model), content_hash(writer_state(program.dump_state())))
    chosen = [c for c in conversations if not (skip_existing and file_of(folder, c.conversation_id).exists())]
    tasks = [partial(_collect, sampled, expert, conversation, folder, on_session) for conversation in chosen]
    return side_by_side(tasks, threads)


def read_trajectories(folder: Path) -> list[Line]:
    """Read every session that was written down, conversation after conversation.

    Raises:
        RecordError: there is none, or a whole line cannot be read.
    """
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in read_lines(path)]
    if not lines:
        raise RecordError(
            f"{str(folder)!r} holds no trajectories: run --mode trajectories first, or name another folder"
        )
    return lines


@dataclass(frozen=True, slots=True)
class _Expert:
    """Who is watched: a model, and a hash of the prompts that it writes by."""

    model: str
    prompts: str


def _collect(
    program: MemoryProgram,
    expert: _Expert,
    conversation: Conversation,
    folder: Path,
    on_session: Callable[[Line], None],
) -> Collected:
    """Go on with one conversation until it is done or a call is lost."""
    path = file_of(folder, conversation.conversation_id)
    done = read_lines(path) if path.exists() else []
    check_done(path, done, [line["episode"]["session"] for line in done], conversation.sessions, expert.model)
    if any(line.get("prompts", expert.prompts) != expert.prompts for line in done):  # older lines do not say
        raise RecordError(f"{str(path)!r} holds what other prompts led to: name another folder")
    space = _space_after(done, conversation)
    placed = questions_by_session(conversation)
    for session in conversation.sessions[len(done) :]:
        rollout = _remember(program, conversation, session, space, placed[session.session_id])
        if rollout.lost:
            failure = rollout.lost[0]
            return Collected(conversation.conversation_id, len(done), f"{failure.where}: {failure.message}")
        line = _line(rollout, expert)
        append_line(path, line)
        done.append(line)
        space = rollout.space
        on_session(line)
    return Collected(conversation.conversation_id, len(done))


def _remember(
    program: MemoryProgram,
    conversation: Conversation,
    session: Session,
    space: MemorySpace,
    questions: Sequence[Question],
) -> Rollout:
    return write(program, Episode(conversation, session, space, tuple(questions)), "expert")


def _line(rollout: Rollout, expert: _Expert) -> Line:
    before = rollout.episode.before.bank.version
    return {
        "episode": episode_to_json(rollout.episode),
        "model": expert.model,
        "prompts": expert.prompts,
        "version": __version__,
        "calls": [
            {
                "agent": call.agent,
                "messages": messages_of(call.request),
                "reply": call.response.text or "",
                "is_valid": rollout.work[call.agent].is_valid,
            }
            for call in rollout.calls
        ],
        "operations": [operation_to_json(o) for o in rollout.space.bank.operations(before)],
    }


def _space_after(done: Sequence[Line], conversation: Conversation) -> MemorySpace:
    """Build what was remembered after the sessions that are done."""
    space = MemorySpace(conversation.conversation_id)
    operations = [operation_from_json(record) for line in done for record in line["operations"]]
    space.bank = MemoryBank.replay(space.namespace, operations)
    return space
