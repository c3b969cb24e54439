"""Faults during an optimisation: the error names the cause, or the run stops with the best so far."""

import errno
import json
from collections.abc import Callable
from pathlib import Path

import dspy
import pytest
from dspy.lm15 import Message, Request, Response, TextPart
from dspy.lm15 import Usage as Tokens

from locomo.types import Question
from memory_program.agents.systems import make_system
from memory_program.bank.outcomes import Answer
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.core.errors import ConfigError, ModelError, OptimizationError, RunFailedError
from memory_program.core.journal import Journal
from memory_program.evaluation.role_models import ModelFactory
from memory_program.models.rate_limit import AdaptiveLimiter, RateLimitedEngine, RetryPolicy
from memory_program.optimization.call_journal import CallReply
from memory_program.optimization.optimization_run import optimize
from memory_program.optimization.proposal_adapter import ProposalAdapter
from memory_program.rl.rewards import AnswerMetric
from tests.competent_model import Prompt, chat_format
from tests.model_server import Behave, Behaviour, ModelServer, always
from tests.optimization_samples import (
    Steerable,
    quick,
    run,
    write_conversations,
)
from tests.scripted_lm import ScriptedLM

OPTIMIZERS = ("simba", "mipro", "gepa", "bootstrap")
PRICED = "openai/gpt-4.1-mini"
TOKENS = Tokens(input_tokens=1000, output_tokens=100)


def failure(
    config: OptimizeConfig, behave: Behave, model: Steerable, score: AnswerMetric | None = None
) -> str:
    """Run against a server that fails, and return the error."""
    kinds = (OptimizationError, RunFailedError)
    with ModelServer(behave, reply=model) as server, pytest.raises(kinds) as caught:
        run(config, server, score)
    assert not config.output.exists()
    return f"{type(caught.value).__name__}: {caught.value}"


def fails(which: Callable[[Prompt], bool]) -> Behave:
    """Fail on some prompts with an error that is not retried."""
    return lambda prompt, seen: Behaviour.BAD_KEY if which(prompt) else Behaviour.COMPETENT


def reads(prompt: Prompt) -> bool:
    return "Answer a question about a conversation" in prompt.system


def test_a_model_that_does_not_answer_ends_the_run_at_once(tmp_path: Path) -> None:
    with (
        ModelServer(always(Behaviour.BAD_KEY)) as server,
        pytest.raises(ModelError, match="'openai/task' at"),
    ):
        run(quick(tmp_path), server)
    assert server.traffic.requests.total() == 2  # the check, twice


def test_a_writer_whose_every_call_fails_ends_the_run(tmp_path: Path) -> None:
    message = failure(quick(tmp_path), fails(lambda prompt: bool(prompt.wanted)), Steerable())
    assert message.startswith(
        "RunFailedError: the writer failed on all 12 sessions; the first failure: writer."
    )
    assert "Incorrect API key" in message


def test_a_reader_whose_every_call_fails_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    message = failure(quick(tmp_path), fails(reads), Steerable())
    assert message.startswith(
        "OptimizationError: none of 8 attempts has a score; the first failure: reader.answer: "
    )
    assert "Incorrect API key" in message
    assert message.endswith("replies are kept: run the same command again to continue")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_optimiser_returns_a_program_if_all_its_calls_fail(optimizer: str, tmp_path: Path) -> None:
    asked: list[Prompt] = []

    def behave(prompt: Prompt, seen: int) -> Behaviour:
        asked.extend([prompt] * reads(prompt))
        return Behaviour.BAD_KEY if len(asked) > 8 else Behaviour.COMPETENT  # 8: the baseline on validation

    message = failure(quick(tmp_path, optimizer=optimizer, concurrency=4), behave, Steerable())
    assert "Incorrect API key" in message


@pytest.mark.parametrize("optimizer", ["simba", "mipro", "gepa"])
def test_a_model_for_instructions_whose_every_call_fails_is_named_as_the_cause(
    optimizer: str, tmp_path: Path
) -> None:
    config = quick(tmp_path, optimizer=optimizer, max_demos=0)
    behave = fails(lambda prompt: bool(prompt.wanted) and prompt.wanted[-1] not in ("answer", "tool_calls"))
    assert "Incorrect API key" in failure(config, behave, Steerable(["reader"]))


def proposes(prompt: Prompt) -> bool:
    return "proposed_instruction" in prompt.wanted


def proposes_new(prompt: Prompt) -> bool:
    return "new_instruction" in prompt.wanted


@pytest.mark.parametrize("optimizer", ["mipro", "gepa"])
def test_a_draft_in_the_thoughts_is_not_tried_as_an_instruction(optimizer: str, tmp_path: Path) -> None:
    model, proposals = Steerable(["reader"]), list[str]()

    def reply(prompt: Prompt, seen: int) -> str:
        text = model(prompt, seen)
        wanted = {"proposed_instruction", "new_instruction"} & set(prompt.wanted)
        if not wanted:
            return text
        proposals.append(text)
        return f"<think>{chat_format(dict.fromkeys(wanted, 'A DRAFT'))}</think>\n{text}"

    config = quick(tmp_path, optimizer=optimizer, max_demos=0)
    with ModelServer(reply=reply) as server:
        run(config, server)
    assert proposals
    assert not any("A DRAFT" in prompt.system for prompt in model.asked)


@pytest.mark.parametrize(("target", "field"), [("reader", "answer"), ("writer", "tool_calls")])
def test_gepa_reflects_on_replies_that_cannot_be_read(target: str, field: str, tmp_path: Path) -> None:
    model = Steerable([])

    def reply(prompt: Prompt, seen: int) -> str:
        text = model(prompt, seen)
        return "I cannot keep to a form." if field in prompt.wanted else text

    with ModelServer(reply=reply) as server:
        run(quick(tmp_path, optimizer="gepa", target=target, trials=1), server)
    reflections = [prompt.fields["examples_with_feedback"] for prompt in model.asked if proposes_new(prompt)]
    assert reflections
    assert all("I cannot keep to a form." in shown for shown in reflections)


@pytest.mark.parametrize(
    ("written", "tries"),
    [
        ("Be brief. [[ ## completed ## ]]", 1),
        ("Be brief.<|im_end|>", 1),
        ("<think>Be long?</think>Be brief.", 1),
        ("N/A", 2),
    ],
)
def test_an_instruction_has_no_markers_and_is_no_word_for_none(written: str, tries: int) -> None:
    replies = [f"[[ ## proposed_instruction ## ]]\n{text}" for text in (written, "Be brief.")[:tries]]
    adapter = ProposalAdapter()
    with ScriptedLM(replies) as lm, dspy.context(lm=lm, adapter=adapter):
        proposed = dspy.Predict("basic_instruction -> proposed_instruction")(basic_instruction="Answer.")
    assert (proposed.proposed_instruction, adapter.dropped) == ("Be brief.", tries - 1)


@pytest.mark.parametrize("bad", [Behaviour.CUT, Behaviour.REFUSAL, Behaviour.EMPTY])
def test_a_bad_proposal_of_mipro_is_dropped_and_asked_for_anew(bad: Behaviour, tmp_path: Path) -> None:
    def behave(prompt: Prompt, seen: int) -> Behaviour:
        return bad if proposes(prompt) and not seen else Behaviour.COMPETENT

    config, model = quick(tmp_path, optimizer="mipro", max_demos=0), Steerable(["reader"])
    with ModelServer(behave, reply=model) as server:
        run(config, server)
        paid = server.traffic.requests.total()
        config.output.unlink()
        run(config, server)
        assert server.traffic.requests.total() == paid  # the replies are kept, the good ones too
    assert any(proposes(prompt) for prompt in model.asked)


def test_mipro_goes_on_without_a_proposal_that_cannot_be_read(tmp_path: Path) -> None:
    asked: list[str] = []

    def behave(prompt: Prompt, seen: int) -> Behaviour:
        if not proposes(prompt):
            return Behaviour.COMPETENT
        asked.append(prompt.key)
        return Behaviour.REFUSAL if prompt.key == asked[0] else Behaviour.COMPETENT

    config = quick(tmp_path, optimizer="mipro", max_demos=0)
    with ModelServer(behave, reply=Steerable(["reader"])) as server:
        run(config, server)
    assert asked.count(asked[0]) == 3
    assert config.output.exists()


def test_mipro_ends_if_no_proposal_can_be_read(tmp_path: Path) -> None:
    def behave(prompt: Prompt, seen: int) -> Behaviour:
        return Behaviour.REFUSAL if proposes(prompt) else Behaviour.COMPETENT

    config = quick(tmp_path, optimizer="mipro", max_demos=0)
    assert "proposed instructions could be read" in failure(config, behave, Steerable(["reader"]))


@pytest.mark.parametrize("optimizer", ["simba", "gepa"])
def test_a_metric_that_raises_ends_the_run_with_its_error(optimizer: str, tmp_path: Path) -> None:
    def broken(question: Question, answer: Answer) -> float:
        raise KeyError("no such gold")

    config = quick(tmp_path, optimizer=optimizer)
    message = failure(config, always(Behaviour.COMPETENT), Steerable(), broken)
    assert message == "OptimizationError: the program or the metric failed with KeyError: 'no such gold'"


def test_a_metric_that_raises_later_is_not_counted_as_a_bad_prompt(tmp_path: Path) -> None:
    scored: list[Answer] = []

    def breaks(question: Question, answer: Answer) -> float:
        scored.append(answer)
        return 1.0 if len(scored) <= 12 else 1 / 0

    config = quick(tmp_path, optimizer="simba", concurrency=1)
    message = failure(config, always(Behaviour.COMPETENT), Steerable(), breaks)
    assert "ZeroDivisionError" in message
    assert len(scored) == 13


def test_a_judge_whose_every_call_fails_is_named_as_the_cause(tmp_path: Path) -> None:
    config = quick(tmp_path, answer_metric="judge", judge_model="openai/judge")
    message = failure(config, fails(lambda prompt: "verdict" in prompt.wanted), Steerable(["reader"]))
    assert "none of 8 attempts has a score" in message
    assert "Incorrect API key" in message


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_fewer_examples_than_a_batch_and_any_seed_are_enough(optimizer: str, tmp_path: Path) -> None:
    small = {"num_examples": 2, "num_val": 2, "batch_size": 16, "trials": 1}
    config = quick(tmp_path, optimizer=optimizer, **small, seed=2**32 - 1)  # MIPROv2 gets the next one
    with ModelServer(reply=Steerable(["reader"])) as server:
        results, _ = run(config, server)
    assert results["stages"][0]["examples"] == {"train": 2, "val": 2}
    assert config.output.exists()


@pytest.mark.parametrize("is_dead", [True, False])
def test_a_final_comparison_whose_every_call_fails_ends_the_run_if_the_model_is_dead(
    is_dead: bool, tmp_path: Path
) -> None:
    """A model that only the new prompts fail on is not dead, and the run ends by saying what failed."""
    is_final: list[bool] = []

    def fails_with_demos(prompt: Prompt) -> bool:
        is_final.extend([True] * (reads(prompt) and bool(prompt.shown)))
        return bool(is_final) and (is_dead or reads(prompt))

    config = quick(tmp_path, optimizer="bootstrap", trials=1, num_examples=4, num_val=2)
    if is_dead:
        message = failure(config, fails(fails_with_demos), Steerable(["reader"]))
        assert message.startswith(
            "RunFailedError: attempt after attempt has no score: ModelError: 'openai/task'"
        )
        return
    with ModelServer(fails(fails_with_demos), reply=Steerable(["reader"])) as server:
        results, output = run(config, server)
    assert results["stages"][0]["winner"]["is_baseline"]
    assert "reader: 2 attempts have no score; the first failure: reader.answer: " in output
    assert config.output.exists()


def test_a_split_without_questions_is_an_error(tmp_path: Path) -> None:
    data = write_conversations(tmp_path / "one.json", count=1)
    with pytest.raises(ConfigError, match="1 conversations give 0 for training"):
        optimize(quick(tmp_path, dataset=str(data)))


def test_a_split_without_questions_is_found_before_a_model_is_called(tmp_path: Path) -> None:
    data = write_conversations(tmp_path / "first.json")
    first, *others = json.loads(data.read_text())
    data.write_text(json.dumps([first, *({**other, "qa": []} for other in others)]))
    with (
        ModelServer(reply=Steerable()) as server,
        pytest.raises(ConfigError, match="for validation: at least one of each is needed"),
    ):
        run(quick(tmp_path, dataset=str(data)), server)
    assert not server.traffic.requests.total()


@pytest.mark.parametrize(
    ("optimizer", "calls"),
    [("simba", 7), ("simba", 14), ("simba", 40), ("mipro", 40), ("gepa", 30), ("bootstrap", 30)],
)
def test_a_limit_of_calls_stops_the_run_with_the_best_so_far(
    optimizer: str, calls: int, tmp_path: Path
) -> None:
    config = quick(tmp_path, optimizer=optimizer, max_calls=calls)
    with ModelServer(reply=Steerable(["reader"])) as server:
        results, output = run(config, server)
        used = results["calls"]["used"]
        assert calls / 2 < server.traffic.requests.total() == used <= calls
    kept = " (the rest is reserved for the final comparison)" if used < calls else ""
    assert f"stopped early: max_calls={calls} is reached{kept}; the best so far is saved" in output
    assert "None" not in output.splitlines()  # without any score there is no signature
    program = make_system("memory", config.system)
    program.load(str(config.output))
    if results["stages"] and results["stages"][0]["comparison"] is not None:
        assert (
            results["stages"][0]["comparison"]["difference"] >= 0
            or (results["stages"][0]["winner"]["is_baseline"])
        )


def test_a_comparison_that_uses_up_its_reserve_reaches_the_limit(tmp_path: Path) -> None:
    more = {"max_sessions": 3, "num_examples": 4, "num_val": 12, "concurrency": 1}
    config = quick(tmp_path, optimizer="simba", max_calls=79, **more)  # 24 for two candidates, 23 are kept
    with ModelServer(reply=Steerable(["reader"], is_fickle=False)) as server:
        results, _ = run(config, server)
    (stage,) = results["stages"]
    assert stage["comparison"] is not None
    assert (results["calls"]["used"], stage["stopped"]) == (79, "max_calls=79 is reached")


def test_a_stopped_run_continues_with_a_higher_limit(tmp_path: Path) -> None:
    with ModelServer(reply=Steerable(["reader"], is_fickle=False)) as server:
        run(quick(tmp_path, optimizer="gepa", max_calls=25), server)
        results, output = run(quick(tmp_path, optimizer="gepa"), server)
        replies = (tmp_path / "run" / "calls.jsonl").read_text().splitlines()
        assert server.traffic.requests.total() == len(replies)  # stored replies are not paid again
    assert "stopped early" not in output
    assert results["stages"][0]["winner"]["score"]["value"] == 1.0


def test_sessions_of_an_earlier_try_count_towards_the_limit(tmp_path: Path) -> None:
    whole, again = (
        quick(folder, optimizer="bootstrap", max_sessions=3, concurrency=1, max_calls=45)
        for folder in (tmp_path / "whole", tmp_path / "again")
    )
    with ModelServer(reply=Steerable(["reader"], is_fickle=False)) as server:
        expected, _ = run(whole, server)
    with ModelServer(reply=Steerable(["reader"], is_fickle=False)) as server:
        run(again.model_copy(update={"max_calls": 25}), server)  # all 18 sessions, and some questions
        results, _ = run(again, server)
        assert server.traffic.requests.total() == results["calls"]["used"] == expected["calls"]["used"] <= 45
    assert results["calls"]["calls"] == expected["calls"]["calls"]
    assert results["calls"]["input_tokens"] == expected["calls"]["input_tokens"]


def test_a_full_disk_ends_the_run_with_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, stored, add = quick(tmp_path, optimizer="simba", trials=1), list[str](), Journal[CallReply].add

    def add_while_there_is_room(journal: Journal[CallReply], record: CallReply) -> None:
        stored.append(record.key)
        if len(stored) > 25:  # 12 sessions, 8 questions and the first calls of the optimiser
            raise OSError(errno.ENOSPC, "No space left on device")
        add(journal, record)

    monkeypatch.setattr(Journal, "add", add_while_there_is_room)
    message = failure(config, always(Behaviour.COMPETENT), Steerable(["reader"]))
    assert message.startswith("OptimizationError: a reply could not be stored: [Errno 28] No space left on")


def in_process(model: Steerable, tokens: Tokens = TOKENS) -> ModelFactory:
    """Make models with a list price, which answer without a server, with this number of tokens."""

    class Engine:
        def complete(self, request: Request) -> Response:
            texts = [message.text or "" for message in request.messages]
            shown = tuple(m.text or "" for m in request.messages if m.role == "assistant")
            prompt = Prompt(str(request.system or ""), texts[-1], shown, request.config.temperature or 0.0)
            message = Message.assistant([TextPart(model(prompt, 0))])
            return Response(id=None, model=request.model, message=message, finish_reason="stop", usage=tokens)

    paced = RateLimitedEngine(Engine(), AdaptiveLimiter(4), RetryPolicy(max_retries=0))
    return lambda name, temperature: dspy.LM(
        name, engine=paced, temperature=temperature, num_retries=0, cache=False
    )


def test_a_limit_of_dollars_stops_the_run_with_the_best_so_far(tmp_path: Path) -> None:
    model, call_usd = Steerable(["reader"]), (1000 * 0.40 + 100 * 1.60) / 1e6
    config = quick(
        tmp_path,
        optimizer="gepa",
        model=PRICED,
        prompt_model=PRICED,
        max_cost=30 * call_usd,
        concurrency=1,
    )
    results, output = run(config, in_process(model))
    assert results["calls"]["cost_usd"] == pytest.approx(len(model.asked) * call_usd)
    assert 15 < len(model.asked) <= 30
    assert "estimated cost: about $0." in output
    assert f"it stops at --max-cost {config.max_cost:g}, and saves the best so far" in output
    assert "stopped early: max_cost=" in output


def test_without_known_prices_the_way_on_is_not_a_higher_limit(tmp_path: Path) -> None:
    config = quick(tmp_path, model=PRICED, prompt_model=PRICED, max_cost=1.0)
    results, output = run(config, in_process(Steerable([]), Tokens()))
    assert results["stages"] == []
    assert (
        "stopped early: max_cost=1.0 can no longer be enforced: a call has no known price; the best so far "
        "is saved, and the same command without --max-cost continues"
    ) in output


def test_a_limit_of_dollars_needs_prices(tmp_path: Path) -> None:
    config = quick(tmp_path, model=PRICED, api_base="http://127.0.0.1:1/v1", max_cost=1.0)
    with pytest.raises(
        ConfigError, match=r"max_cost=1\.0 cannot be enforced: as called here, .* has no known price"
    ):
        optimize(config)
    assert not config.output_dir.exists()
