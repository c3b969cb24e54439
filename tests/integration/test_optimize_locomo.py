"""The writer's episodes on LoCoMo's real train split: the right questions, counted and checked."""

from contextlib import ExitStack, closing
from pathlib import Path

import dspy
import pytest

from locomo.splits import SPLITS
from memory_program.configs.optimize_config import OptimizeConfig, Target
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.dev_examples import CaseSplits, MemoryCase, OptimizationCase
from memory_program.optimization.memory_target import MemoryOptimizationTarget
from memory_program.optimization.reply_cache import with_reply_cache
from tests.model_server import ModelServer
from tests.optimization_samples import impatient

EVERYTHING = 100_000


def session_number(turn_id: str) -> int:
    """LoCoMo numbers a turn by its session: D7:3 is the third turn of session 7."""
    return int(turn_id[1:].partition(":")[0])


def writer_cases(config: OptimizeConfig, server: ModelServer) -> CaseSplits:
    with ExitStack() as stack:
        calls = stack.enter_context(closing(ReplyCache(config.output_dir / "calls.jsonl")))
        target = MemoryOptimizationTarget(config)
        target.begin(calls, stack)
        lm = with_reply_cache(impatient(server.url)(config.model, 0.0), calls)
        stack.enter_context(dspy.context(lm=lm))
        return target.cases(Target.WRITER)


def assert_is_an_episode(case: OptimizationCase) -> None:
    assert isinstance(case, MemoryCase)
    assert case.session is not None
    here = case.session.number
    known = [ingested.session.number for ingested in case.memories.sessions.values()]
    assert known == [s.number for s in case.conversation.sessions if s.number < here]
    for memory in case.memories.bank.live():
        assert all(session_number(turn_id) < here for turn_id in memory.sources)
    for question in case.questions:
        assert max(map(session_number, question.evidence)) == here


@pytest.mark.slow  # 30 s: seven conversations are remembered
@pytest.mark.dataset
def test_the_episodes_of_locomos_train_split_have_the_questions_whose_evidence_ends_in_them(
    locomo_path: Path, tmp_path: Path
) -> None:
    config = OptimizeConfig(
        optimizer="gepa",
        target="writer",
        model="openai/test",
        dataset="locomo",
        data=locomo_path,
        writer_mode="generalist",
        num_examples=EVERYTHING,
        num_val=EVERYTHING,
        episode_questions=EVERYTHING,
        output_dir=tmp_path,
    )
    with ModelServer() as server:
        cases = writer_cases(config, server)
        asked = server.traffic.requests.total()
        again = writer_cases(config, server)
        assert server.traffic.requests.total() == asked  # what is remembered is found again
    assert [case.case_id for case in again.train] == [case.case_id for case in cases.train]

    # 1,157 questions, two of which name no evidence
    assert sum(len(case.questions) for case in cases.train) == 1155
    asked_about = [question.question_id for case in cases.train for question in case.questions]
    assert len(set(asked_about)) == 1155
    assert {case.conversation.conversation_id for case in cases.train} == set(SPLITS["train"])
    assert {case.conversation.conversation_id for case in cases.val} == set(SPLITS["val"])
    used = {case.conversation.conversation_id: case.conversation for case in (*cases.train, *cases.val)}
    assert asked == sum(len(conversation.sessions) for conversation in used.values())  # one call a session
    for case in (*cases.train, *cases.val):
        assert_is_an_episode(case)
    for name in SPLITS["train"]:  # episodes from the beginning, the middle and the end
        depths = [len(c.memories.sessions) for c in cases.train if c.conversation.conversation_id == name]
        assert len(set(depths)) == len(depths)
        assert min(depths) <= 1
        assert max(depths) >= len(used[name].sessions) - 3
