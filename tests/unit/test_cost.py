import pytest

from locomo.types import Conversation
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.core.errors import BudgetExceededError, ConfigError
from memory_program.evaluation.stages.cost_estimate import (
    StageEstimate,
    check_affordable,
    estimate_answers,
    estimate_build,
    estimate_judgements,
    format_estimates,
)
from memory_program.models.usage import list_price
from tests.conversations import session

MODEL = "openai/gpt-4.1-mini"
TALK = Conversation("t1", ("Ana", "Ben"), tuple(session(n, "Ana: " + "word " * 2000) for n in (1, 2)), ())


def config(**settings: object) -> EvaluateConfig:
    return EvaluateConfig(systems="memory,rag,full-context,no-memory", **{"model": MODEL, **settings})


def test_four_specialists_call_four_times_and_a_generalist_once():
    four = estimate_build(config(), SystemName.MEMORY, [TALK], missing=5)
    one = estimate_build(config(writer_mode="generalist"), SystemName.MEMORY, [TALK], missing=5)
    assert four is not None
    assert one is not None
    assert (four.calls, one.calls) == (20, 5)
    assert four.tokens / 4 < one.tokens < four.tokens / 2  # it is shown and replies what all four would


def test_a_build_costs_at_least_its_transcripts():
    estimate = estimate_build(config(), SystemName.MEMORY, [TALK], missing=2)
    price = list_price(MODEL)
    assert estimate is not None
    assert estimate.cost_usd is not None
    assert price is not None
    transcripts = 2 * 4 * 2000 * price.input_usd
    assert transcripts < estimate.cost_usd < 3 * transcripts


def test_full_context_costs_more_than_rag_and_rag_more_than_none():
    def cost(name: SystemName) -> float:
        estimate = estimate_answers(config(), name, [TALK], missing=10)
        assert estimate is not None
        assert estimate.calls == 10
        return estimate.cost_usd or 0.0

    assert cost(SystemName.FULL_CONTEXT) > 3 * cost(SystemName.RAG) > cost(SystemName.NO_MEMORY) > 0


@pytest.mark.parametrize("name", [name for name in SystemName if not name.has_model_writer])
def test_a_build_without_a_model_costs_nothing(name):
    assert estimate_build(config(), name, [TALK], missing=5) is None


def test_finished_work_costs_nothing():
    assert estimate_build(config(), SystemName.MEMORY, [TALK], missing=0) is None
    assert estimate_answers(config(), SystemName.RAG, [TALK], missing=0) is None
    assert estimate_judgements(config(), SystemName.RAG, missing=0) is None
    assert estimate_answers(config(), SystemName.EXTRACTIVE, [TALK], missing=9) is None
    assert format_estimates([]) == []


def test_a_custom_server_has_no_price():
    estimate = estimate_judgements(config(api_base="http://localhost:8000/v1"), SystemName.RAG, missing=3)
    assert estimate == StageEstimate("rag", "judge", MODEL, 3, None, 3 * 530)


def estimates(*costs: float | None) -> list[StageEstimate]:
    return [StageEstimate("rag", "answer", "m", 1000, cost, 2_000_000) for cost in costs]


def test_the_estimate_lists_calls_of_unknown_price():
    assert format_estimates(estimates(0.5, None)) == [
        "estimated cost: about $0.5000, plus calls of unknown price",
        "  rag answer: 1,000 calls to m, about 2,000,000 tokens, about $0.5000",
        "  rag answer: 1,000 calls to m, about 2,000,000 tokens, price unknown",
    ]
    assert format_estimates(estimates(None))[0] == "estimated cost: unknown"


def test_the_estimate_names_models_whose_thoughts_it_leaves_out():
    told = config(model="openai/gpt-5-mini"), SystemName.RAG
    plain = config(model="openai/gpt-4.1-mini"), SystemName.RAG
    (_, thinking), (_, other) = (
        format_estimates([estimate_judgements(*one, missing=3)]) for one in (told, plain)
    )
    assert thinking.endswith(", thoughts not included")
    assert "thoughts" not in other


def test_a_run_over_its_limit_is_refused():
    check_affordable(estimates(0.5, 0.4), spent_usd=0.1, max_cost_usd=1.0)
    check_affordable(estimates(50.0, None), spent_usd=0.1, max_cost_usd=None)
    check_affordable([], spent_usd=1.1, max_cost_usd=1.0)  # finished: only its report is left
    with pytest.raises(
        BudgetExceededError, match=r"about \$1.1000, more than max_cost=1.0: raise --max-cost"
    ):
        check_affordable(estimates(0.5, 0.4), spent_usd=0.2, max_cost_usd=1.0)


def test_a_limit_that_cannot_be_kept_is_refused():
    with pytest.raises(
        ConfigError, match=r"max_cost=1.0 cannot be kept: as called here, m has no known price"
    ):
        check_affordable(estimates(0.1, None), spent_usd=0, max_cost_usd=1.0)


@pytest.mark.parametrize(
    "name",
    [
        "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "vertex_ai/gemini-2.5-flash",
        "gemini/gemini-2.5-flash",
    ],
)
def test_a_model_has_the_price_of_its_provider_by_whichever_api(name):
    assert list_price(name) is not None
    assert list_price(f"openai/{name.partition('/')[2]}") is None
