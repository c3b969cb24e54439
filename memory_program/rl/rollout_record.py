"""Rollouts of a step as JSON: one line for the work of each agent in each rollout."""

from collections.abc import Sequence

from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json
from memory_program.rl.rollouts import (
    AgentSample,
    EpisodeGroups,
    ScoredRollout,
    chat_messages,
    kind_for_agent,
)


def rollout_lines(
    graded: Sequence[ScoredRollout], episode_groups: Sequence[EpisodeGroups], step: int
) -> list[Json]:
    """Describe the rollouts of a step, by episode, agent and rollout.

    ``reward`` is None if a call was lost, ``advantage`` if all rewards of the group are equal.

    Args:
        graded: the rollouts, those of an episode next to each other.
        episode_groups: the groups of each episode.
        step: its number, from 1.
    """
    lines: list[Json] = []
    size = len(graded) // max(1, len(episode_groups))
    for place, of_episode in enumerate(episode_groups):
        rollouts = graded[place * size : (place + 1) * size]
        samples = {(group.agent, s.number): s for group in of_episode.groups for s in group.samples}
        for agent, rewards in of_episode.rewards.items():
            known = iter(rewards)  # one for each rollout with a score, in order
            for scored in rollouts:
                reward = None if scored.score is None else next(known)
                lines.append(_line(scored, agent, reward, samples.get((agent, scored.rollout.number)), step))
    return lines


def _line(
    scored: ScoredRollout, agent: str, reward: float | None, sample: AgentSample | None, step: int
) -> Json:
    rollout, score = scored.rollout, scored.score
    episode, stats = rollout.episode, rollout.agent_stats.get(agent)
    calls = [call for call in rollout.calls if call.agent == agent]
    proposed = [call for p in rollout.proposals if p.actor == agent for call in p.calls]
    parts: Json = {}
    if score is not None:
        parts |= {"task": score.task, "before": score.before, "efficiency": score.efficiency}
        without = score.counterfactual_scores.get(kind_for_agent(agent))
        parts |= {} if without is None else {"without_agent": without}
    if stats is not None:
        parts |= {"is_valid": stats.is_valid, "length_penalty": stats.length_penalty, "tokens": stats.tokens}
    asked = zip(episode.questions, scored.answers, strict=False)  # a lost rollout was not asked
    return {
        "step": step,
        "prompt_id": content_hash(chat_messages(calls[0].request))[:12] if calls else None,
        "conversation_id": episode.conversation.conversation_id,
        "session_id": episode.session.session_id,
        "agent": agent,
        "rollout": rollout.number,
        "reward": reward,
        "advantage": None if sample is None else sample.advantage,
        "weight": None if sample is None else sample.weight,
        "parts": parts,
        "replies": [call.response.text or "" for call in calls],
        "tool_calls": [
            {"name": call.name, "arguments": call.args, "is_refused": call.is_refused} for call in proposed
        ],
        "answers": [
            {"question": q.dated_text, "gold": q.answer, "answer": a.text, "outcome": a.outcome.value}
            for q, a in asked
        ],
    }
