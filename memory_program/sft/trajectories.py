"""Expert trajectories: the training data of supervised fine-tuning.

Each conversation has a JSON-lines file with one line per session: the memory before it, the prompt and reply
of each agent, and the resulting operations. An interrupted run resumes after the last complete line.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from locomo.types import Conversation
from memory_program import __version__
from memory_program.agents.predict_call import dspy_history_disabled
from memory_program.agents.program import MemoryProgram, writer_state
from memory_program.bank.bank import MemoryBank
from memory_program.bank.memory import operation_from_json, operation_to_json
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import RecordError
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json
from memory_program.core.parallel import run_parallel
from memory_program.evaluation.seen_data import sft_conversation_key
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

_FIELDS = ("episode", "calls", "operations")
"""The fields of a line that readers need; earlier versions lack the others."""


@dataclass(frozen=True, slots=True)
class CollectionResult:
    """The number of recorded sessions of one conversation, and the failure that stopped it."""

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
) -> list[CollectionResult]:
    """Record a program writing the memories of conversations; existing files are resumed.

    Args:
        program: the expert; the agents of its writer share one model.
        conversations: the input.
        folder: the folder with one file per conversation.
        threads: conversations in parallel.
        skip_existing: skip conversations that have a file, instead of resuming them.
        temperature: the sampling temperature.
        max_tokens: the longest reply.

    Raises:
        ConfigError: the agents have no model, or several.
        RecordError: a file is from another conversation, model or set of prompts.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sampled = sampling_program(program, temperature, max_tokens, is_expert=True)
    model = model_fingerprint(get_policy_lm(program).model)
    prompts = content_hash(writer_state(program.dump_state()))
    chosen = list[Conversation]()
    for conversation in conversations:
        if skip_existing and session_file(folder, conversation.conversation_id).exists():
            _read_done(conversation, model, prompts, folder)
        else:
            chosen.append(conversation)
    tasks = [partial(_collect, sampled, model, prompts, one, folder) for one in chosen]
    with dspy_history_disabled():
        return run_parallel(tasks, threads)


def read_trajectories(folder: Path) -> list[SessionLine]:
    """Read all recorded sessions; raise ``RecordError`` if there are none, or a line cannot be read."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in read_lines(path, _FIELDS)]
    if not lines:
        raise RecordError(
            f"{str(folder)!r} holds no trajectories: run --mode trajectories first, or name another folder"
        )
    return lines


def conversation_keys(lines: Sequence[SessionLine]) -> list[str]:
    """List the keys (see ``sft_conversation_key``) of the conversations that were recorded, each once."""
    first_sessions: dict[str, Json] = {}
    for line in lines:
        first_sessions.setdefault(line["episode"]["conversation_id"], line["episode"]["session"])
    return [sft_conversation_key(name, session) for name, session in first_sessions.items()]


def _read_done(conversation: Conversation, model: str, prompts: str, folder: Path) -> list[SessionLine]:
    """Read what is recorded of a conversation, and check that the same expert and prompts recorded it."""
    path = session_file(folder, conversation.conversation_id)
    done = read_lines(path, _FIELDS) if path.exists() else []
    recorded = [line["episode"]["session"] for line in done]
    check_resumable(path, done, recorded, conversation.sessions, model)
    if any(line.get("prompts", prompts) != prompts for line in done):  # older lines do not say
        raise RecordError(f"{str(path)!r} holds what other prompts led to: name another folder")
    return done


def _collect(
    program: MemoryProgram,
    model: str,
    prompts: str,
    conversation: Conversation,
    folder: Path,
) -> CollectionResult:
    """Resume one conversation, until it is done or a call fails."""
    path = session_file(folder, conversation.conversation_id)
    done = _read_done(conversation, model, prompts, folder)
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
            "model": model,
            "prompts": prompts,
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
    return CollectionResult(conversation.conversation_id, len(done))
