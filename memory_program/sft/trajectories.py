"""Expert trajectories: what a good writer did, session by session, as material for supervised fine-tuning.

A conversation is one JSON-lines file; a line holds a session: the memory before it, what each agent was asked
and replied, and what that did. A run that was stopped goes on after the last whole line.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from locomo.types import Conversation
from memory_program import __version__
from memory_program.agents.program import MemoryProgram, writer_state
from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import operation_from_json, operation_to_json
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import RecordError
from memory_program.core.hashing import content_hash
from memory_program.core.parallel import run_parallel
from memory_program.models.model_names import model_fingerprint
from memory_program.rl.episode_json import episode_to_json
from memory_program.rl.episodes import Episode, questions_by_session
from memory_program.rl.rollouts import chat_messages, get_policy_lm, run_rollout, sampling_program
from memory_program.sft.session_lines import (
    SessionLine,
    append_line,
    check_resumable,
    read_lines,
    session_file,
)


@dataclass(frozen=True, slots=True)
class CollectionResult:
    """Sessions recorded of one conversation, and the reason why there are not more."""

    conversation_id: str
    sessions: int
    failure: str | None = None


def record_trajectories(
    program: MemoryProgram,
    conversations: Sequence[Conversation],
    folder: Path,
    *,
    threads: int,
    skip_existing: bool = False,
    temperature: float = 0.0,
    max_tokens: int = 4096,
    on_session: Callable[[SessionLine], None] = lambda line: None,
) -> list[CollectionResult]:
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
    expert = _Expert(
        model_fingerprint(get_policy_lm(program).model), content_hash(writer_state(program.dump_state()))
    )
    chosen = [
        c for c in conversations if not (skip_existing and session_file(folder, c.conversation_id).exists())
    ]
    tasks = [partial(_collect, sampled, expert, conversation, folder, on_session) for conversation in chosen]
    return run_parallel(tasks, threads)


def read_trajectories(folder: Path) -> list[SessionLine]:
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
    """The expert that is recorded: its model and a hash of its prompts."""

    model: str
    prompts: str


def _collect(
    program: MemoryProgram,
    expert: _Expert,
    conversation: Conversation,
    folder: Path,
    on_session: Callable[[SessionLine], None],
) -> CollectionResult:
    """Go on with one conversation until it is done or a call is lost."""
    path = session_file(folder, conversation.conversation_id)
    done = read_lines(path) if path.exists() else []
    recorded = [line["episode"]["session"] for line in done]
    check_resumable(path, done, recorded, conversation.sessions, expert.model)
    if any(line.get("prompts", expert.prompts) != expert.prompts for line in done):  # older lines do not say
        raise RecordError(f"{str(path)!r} holds what other prompts led to: name another folder")
    space = MemorySpace(conversation.conversation_id)
    operations = [operation_from_json(record) for line in done for record in line["operations"]]
    space.bank = MemoryBank.replay(space.namespace, operations)
    placed = questions_by_session(conversation)
    for session in conversation.sessions[len(done) :]:
        episode = Episode(conversation, session, space, tuple(placed[session.session_id]))
        rollout = run_rollout(program, episode, "expert")
        if rollout.call_errors:
            failure = rollout.call_errors[0]
            reason = f"{failure.where}: {failure.message}"
            return CollectionResult(conversation.conversation_id, len(done), reason)
        line = {
            "episode": episode_to_json(rollout.episode),
            "model": expert.model,
            "prompts": expert.prompts,
            "version": __version__,
            "calls": [
                {
                    "agent": call.agent,
                    "messages": chat_messages(call.request),
                    "reply": call.response.text or "",
                    "is_valid": rollout.agent_stats[call.agent].is_valid,
                }
                for call in rollout.calls
            ],
            "operations": [
                operation_to_json(o)
                for o in rollout.space.bank.operations(rollout.episode.before.bank.version)
            ],
        }
        append_line(path, line)
        done.append(line)
        space = rollout.space
        on_session(line)
    return CollectionResult(conversation.conversation_id, len(done))
