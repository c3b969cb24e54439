"""Rollouts with scripted models: recorded calls, scores, rewards and groups."""

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import dspy
import pytest
from dspy import lm15

from locomo.types import Category, Conversation, Question
from memory_program.agents.context import MemoryContext
from memory_program.agents.program import MemoryProgram
from memory_program.agents.reader import QAReader
from memory_program.agents.writer import MemoryWriter
from memory_program.bank.memory import MemoryKind
from memory_program.bank.outcomes import Answer, Outcome
from memory_program.bank.space import MemorySpace
from memory_program.core.errors import ConfigError
from memory_program.models.memoized import MemoizedEngine, memoized
from memory_program.models.rate_limit import AdaptiveLimiter, RateLimitedEngine, RetryPolicy
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.reply_cache import CachedEngine
from memory_program.rl.answer_rollouts import AnswerRollout, answer_lines, group_answers
from memory_program.rl.episodes import Episode
from memory_program.rl.rewards import RewardRule, RolloutScore, build_answer_metric
from memory_program.rl.rollouts import (
    EpisodeGroups,
    Grader,
    Rollout,
    ScoredRollout,
    get_policy_lm,
    group_by_agent,
    run_rollout,
    sampling_program,
    training_items,
)
from tests.conversations import session
from tests.scripted_lm import ScriptedEngine, Truncated, fields

SESSION = session(1, "Mara: I moved to Oslo.", "Tom: I got a dog.")
CORE, EPISODIC = "Keep the profile of the speakers", "Remember what happened"
SEMANTIC, PROCEDURAL = "Remember what is true", "Remember how things are done"
QUESTIONS = (
    Question("talk", 0, "Where did Mara move?", Category.SINGLE_HOP, "Oslo", ("D1:1",)),
    Question("talk", 1, "What did Tom get?", Category.SINGLE_HOP, "a dog", ("D1:2",)),
)
AGENTS = ("core", "episodic", "semantic", "procedural")


def create(*texts: str) -> str:
    calls = [{"name": "manage_memory", "args": {"action": "create", "text": text}} for text in texts]
    return fields(tool_calls=json.dumps({"tool_calls": calls}))


NOTHING = create()


def episode() -> Episode:
    conversation = Conversation("talk", ("Mara", "Tom"), (SESSION,), QUESTIONS)
    return Episode(conversation, SESSION, MemorySpace("talk"), QUESTIONS)


def program(engine: object, reader: object | None = None) -> MemoryProgram:
    made = MemoryProgram(MemoryWriter(checks_grounding=False))  # the memories are made up
    made.writer.set_lm(dspy.LM("test/writer", engine=engine, cache=False, num_retries=0))
    lm = dspy.LM(
        "test/reader", engine=reader or ScriptedEngine([]), temperature=0.0, cache=False, num_retries=0
    )
    made.reader.set_lm(lm)
    return made


class Seeded:
    """An engine that never remembers anything, and keeps its requests."""

    def __init__(self) -> None:
        self.requests: list[lm15.Request] = []

    def __deepcopy__(self, memo: object) -> "Seeded":
        return self

    def complete(self, request: lm15.Request) -> lm15.Response:
        self.requests.append(request)
        return lm15.Response(
            id=None,
            model=request.model,
            message=lm15.Message.assistant(NOTHING),
            finish_reason="stop",
            usage=lm15.Usage(input_tokens=1, output_tokens=3),
            logprobs=(lm15.TokenLogprob("a", -0.5, token_id=7), lm15.TokenLogprob("b", -0.25, token_id=8)),
        )


def rolled(seed: str = "s", number: int = 0, **replies: Sequence[object]) -> Rollout:
    scripts = dict(zip((CORE, EPISODIC, SEMANTIC, PROCEDURAL), AGENTS, strict=True))
    script = {marker: replies.get(agent, [NOTHING]) for marker, agent in scripts.items()}
    return run_rollout(sampling_program(program(ScriptedEngine(script)), 1.0, 64), episode(), seed, number)


# sampling


def test_a_rollout_records_each_call_and_leaves_the_episode_alone():
    rollout = rolled(
        episodic=[create("Mara moved to Oslo.")], semantic=[create("Tom has a dog.", "Tom is nice.")]
    )
    assert [(call.agent, call.turn) for call in rollout.calls] == [(agent, 0) for agent in AGENTS]
    assert "Mara moved to Oslo." in rollout.calls[1].response.text
    assert EPISODIC in rollout.calls[1].request.system
    assert [memory.text for memory in rollout.space.bank.live()] == [
        "Mara moved to Oslo.", "Tom has a dog.", "Tom is nice.",
    ]  # fmt: skip
    assert rollout.written == {
        "m1": MemoryKind.EPISODIC,
        "m2": MemoryKind.SEMANTIC,
        "m3": MemoryKind.SEMANTIC,
    }
    assert rollout.episode.before.bank.version == 0
    assert rollout.space.has_session(SESSION)


def test_the_stats_of_each_agent_are_measured():
    bad = {"name": "delete_memory", "args": {"memory_id": "m9", "reason": "x"}}
    both = fields(tool_calls=json.dumps({"tool_calls": [bad]}))
    core = fields(
        tool_calls=json.dumps(
            {"tool_calls": [{"name": "edit_core", "args": {"action": "append", "text": "Mara."}}]}
        )
    )
    work = rolled(
        core=[core], episodic=[both], semantic=["no calls"], procedural=[create("A recipe.")]
    ).agent_stats
    assert {agent: w.is_valid for agent, w in work.items()} == {
        "core": True, "episodic": False, "semantic": False, "procedural": True,
    }  # fmt: skip
    assert (work["core"].tokens, work["procedural"].tokens, work["episodic"].tokens) == (3, 3, 0)
    assert (work["episodic"].calls, work["episodic"].accepted) == ({"delete_memory": 1}, {})
    assert work["core"].kind is MemoryKind.CORE


def test_unparsed_replies_are_unusable_and_failed_calls_are_lost():
    unread = rolled(
        episodic=["no calls"], semantic=[Truncated('[[ ## tool_calls ## ]]\n{"tool_calls": [{"na')]
    )
    assert [failure.where for failure in unread.unusable_replies] == ["writer.episodic", "writer.semantic"]
    assert unread.call_errors == []
    lost = rolled(core=[lm15.ServerError("down")])
    assert [failure.where for failure in lost.call_errors] == ["writer.core"]
    assert [call.agent for call in lost.calls] == list(AGENTS[1:])


def test_the_place_of_a_call_decides_its_seed():
    def seeds(seed: str, number: int) -> list[int | None]:
        engine = Seeded()
        rollout = run_rollout(sampling_program(program(engine), 1.0, 64), episode(), seed, number)
        assert [call.request.config.temperature for call in rollout.calls] == [1.0] * 4
        return [call.request.config.seed for call in rollout.calls]

    assert seeds("run/3", 0) == seeds("run/3", 0)
    everything = [*seeds("run/3", 0), *seeds("run/3", 1), *seeds("run/4", 0)]
    assert len(set(everything)) == 12


def test_calls_outside_a_rollout_are_not_seeded():
    engine = Seeded()
    greedy = sampling_program(program(engine), 0.0, 64)
    greedy.remember(MemorySpace("talk"), SESSION)
    assert [request.config.seed for request in engine.requests] == [None] * 4


def test_the_agents_must_share_one_model():
    with pytest.raises(ConfigError, match="must share one model"):
        get_policy_lm(MemoryProgram())
    mixed = program(Seeded())
    mixed.writer.core.lm = dspy.LM("test/other", engine=Seeded(), cache=False)
    with pytest.raises(ConfigError, match="must share one model"):
        get_policy_lm(mixed)


# grading


def grader(reader: ScriptedEngine, rule: str = "dense") -> Grader:
    made = program(Seeded(), reader)
    metric = build_answer_metric("f1")
    return Grader(made.reader, metric, RewardRule(rule), threads=1, writer=made.writer)


def test_the_answers_of_a_rollout_are_scored():
    reader = ScriptedEngine({"Where did": [fields(answer="Oslo")], "What did": [fields(answer="a cat")]})
    (graded,) = grader(reader).grade([rolled(episodic=[create("Mara moved to Oslo.")])])
    assert graded.score is not None
    assert graded.score.task == 0.5
    assert [answer.text for answer in graded.answers] == ["Oslo", "a cat"]


def test_lost_and_unread_rollouts_have_no_score():
    reader = ScriptedEngine({"Where did": [lm15.ServerError("down")], "What did": [fields(answer="a dog")]})
    lost, unread = grader(reader).grade([rolled(core=[lm15.ServerError("down")]), rolled()])
    assert (lost.score, lost.answers) == (None, ())
    assert unread.score is None
    assert len(reader.requests) == 2


def test_the_delta_scores_the_memory_before_once_per_episode():
    replies = {
        "Where did": [fields(answer="no idea"), fields(answer="Oslo"), fields(answer="Oslo")],
        "What did": [fields(answer="a dog")] * 3,
    }
    rollouts = [rolled(number=n, episodic=[create("Mara moved to Oslo.")]) for n in range(2)]
    graded = grader(ScriptedEngine(replies), "delta").grade(rollouts)
    assert [(g.score.before, g.score.task) for g in graded if g.score] == [(0.5, 1.0), (0.5, 1.0)]


def test_copies_of_an_episode_have_their_own_scores_before():
    replies = {"Where did": [fields(answer="no idea")] * 2, "What did": [fields(answer="a dog")] * 2}
    copies = [replace(rolled(), episode=replace(episode(), questions=(asked,))) for asked in QUESTIONS]
    graded = grader(ScriptedEngine(replies), "delta").grade(copies)
    assert [(g.score.before, g.score.task) for g in graded if g.score] == [(0.0, 0.0), (1.0, 1.0)]


def test_leave_one_out_scores_the_memory_without_each_agent():
    """Leaving out a specialist hides its memories from the reader, and nothing else."""
    reader = ScriptedEngine(
        {"Where did": [fields(answer="Oslo")] * 3, "What did": [fields(answer="a cat")] * 3}
    )
    rollout = rolled(
        episodic=[create("Mara moved to Oslo.")], semantic=[create("Tom has a dog.")], core=["no calls"]
    )
    before = [memory.text for memory in rollout.space.bank.live()]
    (graded,) = grader(reader, "leave-one-out").grade([rollout])
    assert graded.score is not None
    assert graded.score.counterfactual_scores == {MemoryKind.EPISODIC: 0.5, MemoryKind.SEMANTIC: 0.5}
    shown = [["Oslo." in request.user, "dog." in request.user] for request in reader.requests]
    oslo, dog, neither = [True, False], [False, True], [False, False]
    assert shown == [oslo, dog, neither, dog, oslo, neither]
    assert [memory.text for memory in rollout.space.bank.live()] == before
    assert rollout.episode.before.bank.version == 0


def test_a_lost_counterfactual_score_drops_the_rollout():
    replies = [fields(answer="Oslo"), lm15.ServerError("down")]
    reader = ScriptedEngine({"Where did": replies, "What did": [fields(answer="a cat")] * 2})
    (graded,) = grader(reader, "leave-one-out").grade([rolled(episodic=[create("Mara moved to Oslo.")])])
    assert graded.score is None


def test_leave_one_out_rewards_are_the_agents_own():
    """Only one of the two episodic agents contributed to the score; the semantic agents did not."""
    parts = [graded(1.0, ["m1"], episodic=[create("A.")], semantic=[create("B.")]), graded(0.5, ["m1"])]
    withouts = [{MemoryKind.EPISODIC: 0.5, MemoryKind.SEMANTIC: 1.0}, {}]
    both = [
        replace(part, score=replace(part.score, counterfactual_scores=scores))
        for part, scores in zip(parts, withouts, strict=True)
    ]
    grouping = grouped(both, "leave-one-out")
    assert {g.agent: [p.advantage for p in g.samples] for g in grouping.groups} == {"episodic": [0.25, -0.25]}


def test_a_memoized_model_is_asked_once():
    engine = ScriptedEngine([lm15.ServerError("down"), "first", "second"])
    lm = memoized(dspy.LM("test/reader", engine=engine, temperature=0.0, cache=False, num_retries=0))
    with pytest.raises(dspy.LMError):
        lm("Where?")
    assert [lm("Where?"), lm("Where?"), lm("When?"), lm("Where?")] == [
        ["first"],
        ["first"],
        ["second"],
        ["first"],
    ]
    sampled = dspy.LM("test/reader", engine=engine, temperature=1.0, cache=False)
    assert memoized(sampled) is sampled


def test_a_cut_reply_is_cut_each_time_that_it_is_used():
    engine = ScriptedEngine([Truncated(fields(answer="She moved to Oslo because"))])
    reader = QAReader(MemoryContext())
    limited = RateLimitedEngine(engine, AdaptiveLimiter(1), RetryPolicy())
    reader.set_lm(memoized(dspy.LM("test/reader", engine=limited, temperature=0.0, cache=False)))
    space = MemorySpace("mara")
    assert [reader.ask(space, "Where?").outcome for _ in range(3)] == [Outcome.TRUNCATED] * 3
    assert len(engine.requests) == 1


def test_a_waiting_call_retries_after_a_failure():
    answers, asked, failing = ScriptedEngine(["fine"]), threading.Semaphore(0), threading.Event()

    class FailsOnce:
        has_failed = False

        def complete(self, request: lm15.Request) -> lm15.Response:
            if not self.has_failed:
                self.has_failed = True
                asked.release()
                assert failing.wait(60)
                raise lm15.ServerError("hiccup")
            return answers.complete(request)

    engine = MemoizedEngine(FailsOnce(), 10)
    request = lm15.Request(model="m", messages=(lm15.Message.user("q"),))
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(engine.complete, request)
        assert asked.acquire(timeout=60)
        others = [threads.submit(engine.complete, request) for _ in range(3)]
        time.sleep(0.2)  # they wait for the first
        failing.set()
        assert isinstance(first.exception(timeout=60), lm15.ServerError)
        assert [other.result(timeout=60).text for other in others] == ["fine"] * 3


# grouping


def graded(score: float | None, shown: Sequence[str] = (), **replies: Sequence[object]) -> ScoredRollout:
    rollout = rolled(**replies)
    answers = (Answer("x", shown=tuple(shown)),)
    return ScoredRollout(rollout, answers, None if score is None else RolloutScore(score))


def grouped(
    scored: Sequence[ScoredRollout], rule: str, *, alpha: float = 4.0, scale_rewards: bool = False
) -> EpisodeGroups:
    return group_by_agent(scored, AGENTS, RewardRule(rule), alpha=alpha, scale_rewards=scale_rewards)


def test_wrapped_engines_take_tools_if_their_engine_does(tmp_path: Path) -> None:
    for takes_tools in (True, False):
        engine = SimpleNamespace(supports_function_calling=takes_tools)
        calls = ReplyCache(tmp_path / "calls.jsonl")
        for wrapped in (MemoizedEngine(engine, 10), CachedEngine(engine, calls)):
            assert dspy.LM("test/model", engine=wrapped).supports_function_calling is takes_tools


def test_each_agent_has_its_own_reward():
    good = graded(1.0, episodic=[create("Mara moved to Oslo.")])
    bad = graded(0.5, episodic=["no calls"])
    grouping = grouped([good, bad, graded(None)], "dense", alpha=1.0)
    assert grouping.rewards == {
        "core": [1.0, 0.5], "episodic": [1.0, 0.0], "semantic": [1.0, 0.5], "procedural": [1.0, 0.5],
    }  # fmt: skip
    by_agent = {group.agent: [part.advantage for part in group.samples] for group in grouping.groups}
    assert by_agent["episodic"] == [0.5, -0.5]
    assert by_agent["core"] == [0.25, -0.25]
    assert grouping.zero_variance_groups == 0


def test_the_kind_retrieved_most_weighs_more():
    good = graded(1.0, ["m1"], episodic=[create("Mara moved to Oslo.")])
    bad = graded(0.0, ["m1"], semantic=[create("Tom is nice.")])
    grouping = grouped([good, bad], "outcome")
    by_agent = {group.agent: [(p.weight, p.advantage) for p in group.samples] for group in grouping.groups}
    assert by_agent["episodic"] == [(4.0, 2.0), (1.0, -0.5)]
    assert by_agent["semantic"] == [(1.0, 0.5), (4.0, -2.0)]
    assert by_agent["core"] == [(1.0, 0.5), (1.0, -0.5)]


def test_groups_of_equal_rewards_are_dropped_and_counted():
    same = [graded(0.5), graded(0.5, episodic=["no calls"])]
    grouping = grouped(same, "dense", scale_rewards=True)
    assert [group.agent for group in grouping.groups] == ["episodic"]
    assert grouping.zero_variance_groups == 3


def test_groups_with_fewer_than_two_scores_are_lost():
    for scores in ([None, None], [0.5, None]):
        grouping = grouped([graded(score) for score in scores], "dense")
        assert (grouping.groups, grouping.zero_variance_groups, grouping.lost_groups) == ((), 0, len(AGENTS))


def test_training_items_hold_the_sampled_tokens():
    tapped = sampling_program(program(Seeded()), 1.0, 64)
    both = [
        ScoredRollout(run_rollout(tapped, episode(), "s", n), (), RolloutScore(float(n))) for n in range(2)
    ]
    grouping = grouped(both, "outcome", alpha=1.0)
    first, second = training_items(grouping.groups[0], has_own_logprobs=True)
    assert (first["completion_tokens"], first["logprobs"]) == ((7, 8), (-0.5, -0.25))
    assert (first["advantage"], second["advantage"]) == (-0.5, 0.5)
    assert (first["reward"], second["reward"]) == (0.0, 1.0)
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    assert CORE in first["messages"][0]["content"]
    assert first["completion"]["content"] == NOTHING
    assert training_items(grouping.groups[0], has_own_logprobs=False)[0]["logprobs"] is None


@pytest.mark.parametrize(("limit", "wanted", "given"), [(32, 64, 32), (64, 32, 32), (None, 64, 64)])
def test_a_reply_respects_the_limit_of_the_model(limit, wanted, given):
    engine, made = Seeded(), MemoryProgram()
    made.writer.set_lm(dspy.LM("test/writer", engine=engine, max_tokens=limit, cache=False, num_retries=0))
    run_rollout(sampling_program(made, 1.0, wanted), episode(), "seed", 0)
    assert {request.config.max_tokens for request in engine.requests} == {given}


def test_a_lost_consolidation_of_a_counterfactual_drops_the_rollout():
    rollout = rolled(episodic=[create("Mara moved to Oslo.")], semantic=[create("Tom has a dog.")])
    writer = MemoryWriter(memory_budget=1, checks_grounding=False)
    writer.set_lm(dspy.LM("test/down", engine=Down(), cache=False, num_retries=0))
    reader = ScriptedEngine({"Where did": [fields(answer="Oslo")], "What did": [fields(answer="a dog")]})
    made = Grader(
        program(Seeded(), reader).reader,
        build_answer_metric("f1"),
        RewardRule("leave-one-out"),
        threads=1,
        writer=writer,
    )
    (graded,) = made.grade([rollout])
    assert graded.score is None


class Down:
    """An engine of a server that is gone."""

    def __deepcopy__(self, memo: object) -> "Down":
        return self

    def complete(self, request: lm15.Request) -> lm15.Response:
        raise lm15.ServerError("down")


def test_an_answer_of_a_dropped_group_is_recorded_with_its_whole_reward():
    asked = [
        AnswerRollout(question, number, Answer("x"), (), score)
        for question, scores in zip(QUESTIONS, ([1.0, 0.0], [1.0, 1.0]), strict=True)
        for number, score in enumerate(scores)
    ]
    groups = [group_answers(asked[n : n + 2], format_weight=0.1, scale_rewards=True) for n in (0, 2)]
    rewards = [line["reward"] for line in answer_lines(asked, groups, 1)]
    assert rewards == pytest.approx([1.1, 0.1, 1.1, 1.1])
