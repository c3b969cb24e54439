"""The engine with tiny random models: results, usage, refusals, repeatability, weights and threads."""

import copy
import gc
import json
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from dspy import lm15
from dspy.lm15 import Config, InvalidRequestError, Message, Request

from memory_program.core.errors import ModelError
from memory_program.inference.decoder import Decoder, PrefilledPrompt
from memory_program.inference.engine import LocalEngine, LocalSettings, _SeedSequence
from memory_program.inference.loading import load_model
from memory_program.inference.prefix_cache import BLOCK_TOKENS, PrefixCache
from memory_program.inference.sampling import SamplingParams
from memory_program.models.local_model import LocalModel
from memory_program.models.rate_limit import AdaptiveLimiter
from tests.tiny_model import save_tiny_model

SYSTEM = "You keep what Nate and Joanna say: the turtle, the screenplay, the garden and the first of June."
QUESTIONS = [f"What did {name} do {n} times?" for n in range(8) for name in ("Nate", "Joanna", "the turtle")]
ARCHITECTURES = ["llama", "qwen2", "qwen3"]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Compute on one thread: tests run in parallel, and threads that wait for a busy core slow them down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(folder: Path) -> Iterator[LocalEngine]:
    engine = LocalEngine(LocalSettings(source=str(folder), dtype="float32"))
    yield engine
    engine.close()


def request(text: str = "What did Nate adopt?", *, system: str | None = SYSTEM, **config: Any) -> Request:
    settings = {"temperature": 0.0, "max_tokens": 12, **config}
    return Request(
        model="local:tiny", system=system, messages=(Message.user(text),), config=Config(**settings)
    )


def answer(engine: LocalEngine, text: str, **config: Any) -> str:
    return engine.complete(request(text, **config)).text or ""


# results


def random_tokens(random: torch.Generator, count: int) -> list[int]:
    return torch.randint(384, (count,), generator=random).tolist()


@pytest.mark.parametrize("shared_tokens", [50, 300])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_decode_in_a_batch_gives_the_logits_of_each_sequence_alone(
    architecture: str, shared_tokens: int, tmp_path: Path
) -> None:
    save_tiny_model(tmp_path, architecture, max_position_embeddings=2048)
    model = load_model(str(tmp_path), "cpu", torch.float32)
    decoder = Decoder(model.network, model.kv_shape, PrefixCache(512))
    random = torch.Generator().manual_seed(0)

    def assert_like_alone(logits: torch.Tensor, sequence: list[int]) -> None:
        with torch.no_grad():
            alone = model.network(input_ids=torch.tensor([sequence])).logits[0, -1]
        torch.testing.assert_close(logits, alone, atol=1e-4, rtol=1e-4)

    shared = random_tokens(random, shared_tokens)
    # ends of a few tokens, of some that enlarge the cache, of several chunks; and an unrelated single token
    ends = [random_tokens(random, count) for count in (3, 455, 1100, 9)]
    prompts = [*(shared + end for end in ends), random_tokens(random, 1)]
    prefilled: list[PrefilledPrompt] = []
    for prompt in prompts:
        prefilled += decoder.prefill([prompt])
        decoder.add_sequence(prefilled[-1])
        assert_like_alone(prefilled[-1].logits[0], prompt)
    whole_blocks = shared_tokens // 16 * 16
    assert [each.cached_tokens for each in prefilled] == [0, whole_blocks, whole_blocks, whole_blocks, 0]
    decoder.remove_sequence(0)
    sequences = [list(prompts[index]) for index in (4, 1, 2, 3)]  # the last one moved to slot 0
    for step in range(10):
        if step == 3:  # others start from the same prompts, whose sequences have grown
            for index in (3, 4, 1):
                decoder.add_sequence(prefilled[index])
                sequences.append(list(prompts[index]))
        new = random_tokens(random, len(sequences))
        logits = decoder.decode(new)
        for row, (sequence, token) in enumerate(zip(sequences, new, strict=True)):
            sequence.append(token)
            assert_like_alone(logits[row], sequence)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_prompts_prefilled_together_get_the_logits_of_each_alone(architecture: str, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, architecture, max_position_embeddings=2048)
    model = load_model(str(tmp_path), "cpu", torch.float32)
    together, alone = (Decoder(model.network, model.kv_shape, PrefixCache(512)) for _ in range(2))
    random = torch.Generator().manual_seed(0)
    # one with a cached prefix, one that is cached but for a single token, short ones, one of three chunks
    prompts = [random_tokens(random, length) for length in (70, 33, 1, 20, 1100)]
    for decoder in (together, alone):
        decoder.prefill([prompts[0][:50]])
        decoder.prefill([prompts[1][:32]])
    prefilled = together.prefill(prompts)
    assert [each.cached_tokens for each in prefilled] == [48, 32, 0, 0, 0]
    for each, prompt in zip(prefilled, prompts, strict=True):
        (expected,) = alone.prefill([prompt])
        torch.testing.assert_close(each.logits, expected.logits, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(each.kv_LKHTD, expected.kv_LKHTD, atol=1e-4, rtol=1e-4)


def test_the_start_of_a_prefix_is_kept_longer_than_its_end() -> None:
    cache, values = PrefixCache(8 * BLOCK_TOKENS), torch.zeros(1, 2, 1, 8 * BLOCK_TOKENS, 1)
    common = list(range(4 * BLOCK_TOKENS))
    longer = common + list(range(2000, 2000 + 4 * BLOCK_TOKENS))
    other = list(range(3000, 3000 + 2 * BLOCK_TOKENS))
    for prompt in (common, longer, other):
        cache.find_longest_prefix(prompt)
        cache.store(prompt, values[..., : len(prompt), :])
    assert len(cache) == 8 * BLOCK_TOKENS
    assert (len(cache.find_longest_prefix(longer)), len(cache.find_longest_prefix(other))) == (6, 2)


def test_recomputed_logits_are_bit_identical_in_any_batch(engine: LocalEngine) -> None:
    decoder = Decoder(engine.model.network, engine.model.kv_shape, PrefixCache(64))
    texts = [[n % 300 for n in range(start, start + 40)] for start in (0, 90, 180)]
    alone = decoder.prefill(texts[:1])[0].logits
    for prefilled in decoder.prefill(texts):
        decoder.add_sequence(prefilled)
    decoder.decode([1, 2, 3])
    assert torch.equal(decoder.recompute_logits(texts[0]), alone)


def test_greedy_text_equals_transformers_generate(engine: LocalEngine) -> None:
    for question in QUESTIONS[:4]:
        prompt = engine.prompt_tokens(request(question))
        output = engine.model.network.generate(
            torch.tensor([prompt], device=engine.model.network.device),
            max_new_tokens=12,
            do_sample=False,
            pad_token_id=1,
        )
        response = engine.complete(request(question))
        assert [token.token_id for token in response.logprobs or ()] == output[0, len(prompt) :].tolist()


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("two_threads")
def test_a_prefill_thread_changes_no_text(folder: Path, engine: LocalEngine) -> None:
    two = LocalEngine(LocalSettings(source=str(folder), dtype="float32"))
    expected = [answer(engine, question) for question in QUESTIONS]
    before = set(threading.enumerate())
    with ThreadPoolExecutor(len(QUESTIONS)) as threads:
        assert list(threads.map(lambda question: answer(two, question), QUESTIONS)) == expected
    expected_threads = 2 if two.model.network.device.type == "cpu" else 1  # a GPU has no prefill thread
    assert len(set(threading.enumerate()) - before) == expected_threads
    assert two.complete(request(QUESTIONS[0])).usage.cache_read_tokens
    with two.updating():
        pass
    with ThreadPoolExecutor(2) as threads:
        asked = [request(QUESTIONS[0]), request("Another one?", system=None)]
        for response in threads.map(two.complete, asked):
            assert not response.usage.cache_read_tokens
    two.close()


@pytest.mark.usefixtures("two_threads")
def test_an_engine_with_one_slot_has_one_thread(folder: Path) -> None:
    narrow = LocalEngine(LocalSettings(source=str(folder), dtype="float32", slots=1))
    before = set(threading.enumerate())
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda question: answer(narrow, question), QUESTIONS))
    assert len(set(threading.enumerate()) - before) == 1
    narrow.close()


def test_logprobs_belong_to_the_sampled_tokens(engine: LocalEngine) -> None:
    asked = request(temperature=1.3, top_p=0.9, seed=4)
    tokens = [token.token_id for token in engine.complete(asked).logprobs or ()]
    logprobs = [token.logprob for token in engine.complete(asked).logprobs or ()]
    prompt = engine.prompt_tokens(asked)
    with torch.no_grad():
        whole = torch.tensor([prompt + tokens], device=engine.model.network.device)
        logits = engine.model.network(input_ids=whole).logits[0]
    expected = logits.log_softmax(dim=-1)[range(len(prompt) - 1, len(prompt) + len(tokens) - 1), tokens]
    assert logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_prompt_is_rendered_by_the_chat_template(engine: LocalEngine) -> None:
    chat = Request(
        model="local:tiny",
        system=("Be", "brief."),
        messages=(Message.user("Hi"), Message.assistant("Yes?"), Message.user(["May", "June"])),
    )
    assert engine.model.tokenizer.decode(engine.prompt_tokens(chat)) == (
        "<|im_start|>system\nBe\nbrief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nMay\nJune<|im_end|>\n<|im_start|>assistant\n"
    )


# usage and refusals


def test_half_an_emoji_is_read_as_a_replacement_character(engine: LocalEngine) -> None:
    assert engine.prompt_tokens(request("a \ud83d b")) == engine.prompt_tokens(request("a \ufffd b"))
    assert engine.reply_tokens("a \ud83d b") == engine.reply_tokens("a \ufffd b")


def test_special_tokens_in_a_message_are_plain_text(engine: LocalEngine) -> None:
    tokenizer = engine.model.tokenizer
    for token in tokenizer.all_special_tokens:
        plain, forged = (engine.prompt_tokens(request(f"before {said} after")) for said in ("", token))
        assert forged.count(tokenizer.convert_tokens_to_ids(token)) == plain.count(
            tokenizer.convert_tokens_to_ids(token)
        )


def test_a_stop_token_that_a_reply_quotes_does_not_end_it_in_training(engine: LocalEngine) -> None:
    tokens = engine.reply_tokens("Nate wrote <|im_end|> and left")
    assert [place for place, token in enumerate(tokens) if token in engine.model.stop_ids] == [
        len(tokens) - 1
    ]


def test_a_stop_token_ends_the_reply_and_is_counted_but_not_shown(
    engine: LocalEngine, tmp_path: Path
) -> None:
    whole = engine.complete(request())
    assert (whole.finish_reason, whole.usage.output_tokens) == ("length", 12)
    tokens = [token.token_id for token in whole.logprobs or ()]
    at = next(i for i in range(3, 12) if tokens[i] not in tokens[:i])
    network = engine.model.network
    network.generation_config.eos_token_id = [300, tokens[at]]
    network.save_pretrained(tmp_path)
    engine.model.tokenizer.save_pretrained(tmp_path)
    stopping = LocalEngine(LocalSettings(source=str(tmp_path), dtype="float32"))
    response = stopping.complete(request())
    stopping.close()
    assert response.finish_reason == "stop"
    assert response.text == engine.model.tokenizer.decode(tokens[:at])
    assert response.usage.output_tokens == at + 1
    assert [token.token_id for token in response.logprobs or ()] == tokens[: at + 1]


def test_usage_counts_prompt_tokens_and_cached_tokens(engine: LocalEngine) -> None:
    prompts = [engine.prompt_tokens(request(question)) for question in QUESTIONS[:2]]
    first, second = (engine.complete(request(question)).usage for question in QUESTIONS[:2])
    common = next(i for i, (a, b) in enumerate(zip(*prompts, strict=False)) if a != b)
    assert (first.input_tokens, first.cache_read_tokens, first.output_tokens) == (len(prompts[0]), 0, 12)
    assert (second.input_tokens, second.cache_read_tokens) == (len(prompts[1]), common // 16 * 16)
    assert common > 32


def test_a_prompt_that_fills_the_context_is_refused_with_its_length(engine: LocalEngine) -> None:
    with pytest.raises(
        lm15.ContextLengthError, match=r"the prompt has \d{3,} tokens; .* at most 512 together"
    ):
        engine.complete(request("turtle " * 600))


def test_the_context_of_longrope_ends_where_its_frequencies_change(tmp_path: Path) -> None:
    """A longer text would have other frequencies from its first token on than the keys that are kept."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
    }
    config = {"original_max_position_embeddings": 128, "pad_token_id": None}
    save_tiny_model(tmp_path, "phi3", rope_parameters=rope, **config)
    engine = LocalEngine(LocalSettings(source=str(tmp_path), dtype="float32"))
    response = engine.complete(request("turtle " * 10, system=None, max_tokens=None))
    assert (response.usage.input_tokens or 0) + (response.usage.output_tokens or 0) <= 128
    with pytest.raises(lm15.ContextLengthError, match="at most 128 together"):
        engine.complete(request("turtle " * 600))
    engine.close()


def test_a_reply_is_cut_where_the_context_ends(engine: LocalEngine) -> None:
    response = engine.complete(request("turtle " * 150, max_tokens=None))
    assert response.finish_reason == "length"
    assert (response.usage.input_tokens or 0) + (response.usage.output_tokens or 0) == 512


@pytest.mark.parametrize(
    ("refused", "feature"),
    [
        (
            request(response_format={"type": "json_schema", "schema": {"type": "no"}}),
            "config.response_format",
        ),
        (request(frequency_penalty=0.5), "config.frequency_penalty"),
        (request(logprobs=3), "config.logprobs"),
        (request(extensions={"min_p": 0.1}), "config.extensions['min_p']"),
        (
            Request(model="m", messages=(Message.user("Hi"),), tools=(lm15.FunctionTool(name="look"),)),
            "tools",
        ),
        (
            Request(model="m", messages=(Message.user("Hi"), Message.tool("call", "4"), Message.user("So?"))),
            "messages[1]",
        ),
        (
            Request(model="m", messages=(Message.user([lm15.ImagePart(url="http://127.0.0.1/a.png")]),)),
            "messages[0]",
        ),
    ],
)
def test_an_unsupported_feature_is_refused_by_name(
    engine: LocalEngine, refused: Request, feature: str
) -> None:
    with pytest.raises(lm15.UnsupportedFeatureError) as caught:
        engine.complete(refused)
    assert caught.value.feature == feature


def test_logprobs_of_the_chosen_tokens_are_supported(engine: LocalEngine) -> None:
    assert len(engine.complete(request(logprobs=0)).logprobs or ()) == 12


# grammars, stop strings and loops

CALLS = {
    "type": "object",
    "properties": {
        "calls": {
            "type": "array",
            "maxItems": 2,
            "items": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {"name": {"const": "add"}, "text": {"type": "string", "maxLength": 12}},
                        "required": ["name", "text"],
                        "additionalProperties": False,
                    },
                    {
                        "type": "object",
                        "properties": {"name": {"const": "delete"}, "id": {"enum": ["m1", "m2"]}},
                        "required": ["name", "id"],
                        "additionalProperties": False,
                    },
                ]
            },
        }
    },
    "required": ["calls"],
    "additionalProperties": False,
}


def held(schema: object = CALLS) -> dict[str, Any]:
    response_format = {"type": "json_schema", "schema": schema, "name": "calls", "strict": True}
    return {"max_tokens": 300, "response_format": response_format}


def check_calls(text: str) -> None:
    calls = json.loads(text)["calls"]
    assert len(calls) <= 2
    for call in calls:
        assert call.keys() == ({"name", "text"} if call["name"] == "add" else {"name", "id"})
        assert call["name"] in ("add", "delete")
        assert len(call.get("text", "")) <= 12
        assert call.get("id", "m1") in ("m1", "m2")
    assert text == json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_reply_is_json_of_its_schema_alone_and_in_a_batch_with_others(
    engine: LocalEngine, temperature: float
) -> None:
    def ask(question: str) -> str:
        free = question.startswith("What did Nate")  # some sequences of the batch have no grammar
        return answer(engine, question, temperature=temperature, seed=3, **({} if free else held()))

    alone = [ask(question) for question in QUESTIONS]
    with ThreadPoolExecutor(len(QUESTIONS)) as threads:
        assert list(threads.map(ask, QUESTIONS)) == alone
    for question, text in zip(QUESTIONS, alone, strict=True):
        if not question.startswith("What did Nate"):
            check_calls(text)
    assert len(set(alone)) > 3


@pytest.mark.parametrize("filters", [{"top_k": 1}, {"top_p": 0.01}, {"top_k": 5, "top_p": 0.9}])
def test_filters_apply_to_the_tokens_that_the_grammar_allows(
    engine: LocalEngine, filters: dict[str, Any]
) -> None:
    check_calls(answer(engine, QUESTIONS[0], temperature=1.5, seed=1, **filters, **held()))


def test_the_end_of_the_json_ends_the_reply(engine: LocalEngine) -> None:
    response = engine.complete(
        request(**held({"type": "object", "properties": {}, "additionalProperties": False}))
    )
    assert (response.text, response.finish_reason) == ("{}", "stop")
    assert response.usage.output_tokens == len(response.logprobs or ())


def test_logprobs_are_those_of_the_model_without_the_grammar(engine: LocalEngine) -> None:
    response = engine.complete(request(**held()))
    tokens = [*engine.prompt_tokens(request())]
    for scored in response.logprobs or ():
        with torch.no_grad():
            logits = engine.model.network(input_ids=torch.tensor([tokens])).logits[0, -1]
        assert scored.token_id is not None
        expected = float(logits.log_softmax(dim=-1)[scored.token_id])
        assert scored.logprob == pytest.approx(expected, abs=1e-3)
        tokens.append(scored.token_id)


def test_a_json_object_has_no_whitespace_between_its_parts(engine: LocalEngine) -> None:
    response = engine.complete(request(max_tokens=40, response_format={"type": "json_object"}))
    assert (response.text or "").startswith("{")
    assert (response.text or "")[1:2] in ('"', "}")


def test_a_schema_that_cannot_be_a_grammar_is_refused_with_the_reason(engine: LocalEngine) -> None:
    unique = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    with pytest.raises(lm15.UnsupportedFeatureError, match=r"cannot be a grammar .*uniqueItems"):
        engine.complete(request(**held(unique)))


def test_a_tokenizer_with_long_tokens_has_no_grammars(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, text="a" * 1500, tokens=290, by_words=False)
    engine = LocalEngine(LocalSettings(source=str(tmp_path), dtype="float32"))
    with pytest.raises(lm15.UnsupportedFeatureError, match=r"longest token 1\d\d\d characters"):
        engine.complete(request(system=None, **held()))
    engine.close()


def test_a_stop_string_ends_the_reply_and_is_no_part_of_it(engine: LocalEngine) -> None:
    whole = answer(engine, QUESTIONS[0], max_tokens=40)
    for start in range(3, 30, 5):
        stop = whole[start : start + 4]
        response = engine.complete(request(QUESTIONS[0], max_tokens=40, stop=("never", stop)))
        assert response.text == whole[: whole.index(stop)]
        assert response.finish_reason == "stop"
        assert response.usage.output_tokens == len(response.logprobs or ()) < 40
    assert answer(engine, QUESTIONS[0], max_tokens=40, stop=("never",)) == whole


def test_a_reply_that_repeats_itself_is_stopped_and_says_so(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, tie_word_embeddings=True, loudness=1.0)  # its greedy text is one token
    engine = LocalEngine(LocalSettings(source=str(tmp_path), dtype="float32"))
    response = engine.complete(request(system=None, max_tokens=400))
    engine.close()
    assert response.provider_data == {"is_repetitive": True}
    assert (response.finish_reason, response.usage.output_tokens) == ("length", 128)


def test_settings_of_the_chat_template_reach_it(engine: LocalEngine) -> None:
    tokenizer = engine.model.tokenizer
    template = str(tokenizer.chat_template)
    tokenizer.chat_template = template + "{% if enable_thinking is false %}I do not think.{% endif %}"
    plain, quick = (
        tokenizer.decode(engine.prompt_tokens(request(extensions={"chat_template_kwargs": settings})))
        for settings in ({}, {"enable_thinking": False, "tokenize": True})
    )
    assert quick == plain + "I do not think."


def test_a_chat_template_that_asks_for_today_gets_the_same_day_each_time(engine: LocalEngine) -> None:
    tokenizer = engine.model.tokenizer
    tokenizer.chat_template = "{{ strftime_now('%d %b %Y') }}" + str(tokenizer.chat_template)
    assert tokenizer.decode(engine.prompt_tokens(request("Hi"))).startswith("26 Jul 2024")


@pytest.mark.parametrize("settings", [{"continue_final_message": True}, {"messages": "x"}, {"day": 0}])
def test_settings_that_the_chat_template_cannot_use_are_named(
    engine: LocalEngine, settings: dict[str, object]
) -> None:
    tokenizer = engine.model.tokenizer
    tokenizer.chat_template = "{{ 1 / day if day is defined else '' }}" + str(tokenizer.chat_template)
    with pytest.raises(InvalidRequestError, match=r"refuses this with --chat-template-kwargs \{"):
        engine.prompt_tokens(request("Hi", extensions={"chat_template_kwargs": settings}))


# repeatability


def test_greedy_text_is_the_same_alone_and_in_a_batch(engine: LocalEngine) -> None:
    alone = [answer(engine, question) for question in QUESTIONS]
    with ThreadPoolExecutor(len(QUESTIONS)) as threads:
        assert list(threads.map(lambda question: answer(engine, question), QUESTIONS)) == alone
    assert len(set(alone)) > len(QUESTIONS) // 2


def test_no_token_is_computed_twice_in_bfloat16(folder: Path) -> None:
    engine = LocalEngine(LocalSettings(source=str(folder), dtype="bfloat16"))
    passes: list[int] = []
    engine.model.network.register_forward_pre_hook(
        lambda _, __, kwargs: passes.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    for question in QUESTIONS:
        answer(engine, question)
    engine.close()
    assert len(passes) == 12 * len(QUESTIONS)


def test_a_small_model_computes_in_float32_on_a_processor_with_bfloat16_tiles(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    engine = LocalEngine(LocalSettings(source=str(folder), device="cpu"))
    engine.close()
    assert engine.model.network.dtype == torch.float32


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_text_does_not_depend_on_the_batch_despite_near_ties(
    architecture: str, tmp_path: Path
) -> None:
    save_tiny_model(tmp_path, architecture)
    engine = LocalEngine(LocalSettings(source=str(tmp_path), dtype="float32"))
    with engine.updating() as network, torch.no_grad():
        rows = network.get_output_embeddings().weight
        jitter = torch.randn(rows[192:].shape, generator=torch.Generator().manual_seed(0))
        rows[192:] = rows[:192] * (1 + 1e-7 * jitter.to(rows.device))  # each token has a twin
    alone = [answer(engine, question) for question in QUESTIONS]
    with ThreadPoolExecutor(len(QUESTIONS)) as threads:
        assert list(threads.map(lambda question: answer(engine, question), QUESTIONS)) == alone
    engine.close()


def test_a_seed_repeats_a_sampled_text_in_any_batch(engine: LocalEngine) -> None:
    def sample(seed: int) -> str:
        return answer(engine, QUESTIONS[seed % 5], temperature=1.0, top_p=0.95, seed=seed)

    alone = [sample(seed) for seed in range(20)]
    with ThreadPoolExecutor(20) as threads:
        assert list(threads.map(sample, range(20))) == alone
    assert len(set(alone)) == 20


def test_calls_without_a_seed_follow_one_series_of_seeds(folder: Path) -> None:
    def series(seed: int, between: bool) -> list[str]:
        engine = LocalEngine(LocalSettings(source=str(folder), dtype="float32", seed=seed))
        texts: list[str] = []
        for _ in range(4):
            texts.append(answer(engine, "What did Nate adopt?", temperature=1.0))
            if between:
                answer(engine, "And Joanna?", temperature=1.0)
        engine.close()
        return texts

    assert series(0, between=False) == series(0, between=True)
    assert len({*series(0, between=False), *series(1, between=False)}) == 8


def test_the_series_of_seeds_never_changes() -> None:
    seeds = _SeedSequence(3)
    sampling = SamplingParams(1.0, top_p=0.9)
    assert [seeds.next((1, 2, 3), sampling) for _ in range(2)] == [9474559412264536, 71154559970913646]
    assert seeds.next((1, 2), SamplingParams(0.5, top_k=5)) == 61411330858229947


# caches, weights and threads


def test_the_prefix_cache_keeps_the_latest_blocks() -> None:
    cache = PrefixCache(max_tokens=48)
    kv = torch.arange(64.0).reshape(1, 1, 1, 64, 1)
    first, second, long = list(range(40)), [9] * 20, list(range(100, 164))
    cache.store(first, kv)
    cache.store(second, kv)
    assert [len(cache.find_longest_prefix(text)) for text in (first, second)] == [2, 1]
    assert torch.equal(torch.cat(cache.find_longest_prefix(first), dim=-2).flatten(), torch.arange(32.0))
    cache.find_longest_prefix(second)
    cache.store([7] * 20, kv)  # the second half of the first text is the least recently used
    assert [len(cache.find_longest_prefix(text)) for text in (first, second, [7] * 20)] == [1, 1, 1]
    cache.store(long, kv)
    assert len(cache.find_longest_prefix(long)) == 3
    assert len(cache) == 48


def test_a_prefix_cache_of_size_zero_keeps_nothing(folder: Path) -> None:
    engine = LocalEngine(LocalSettings(source=str(folder), prefix_tokens=0))
    assert [engine.complete(request()).usage.cache_read_tokens for _ in range(2)] == [0, 0]
    engine.close()


def test_changed_weights_take_effect_and_clear_the_prefix_cache(engine: LocalEngine, tmp_path: Path) -> None:
    answer(engine, QUESTIONS[0])
    save_tiny_model(tmp_path, seed=1)
    other = LocalEngine(LocalSettings(source=str(tmp_path), dtype="float32"))
    with engine.updating() as network:
        network.train().load_state_dict(other.model.network.state_dict())
    response = engine.complete(request(QUESTIONS[0]))
    assert response.text == answer(other, QUESTIONS[0])
    assert response.usage.cache_read_tokens == 0
    assert not engine.model.network.training
    other.close()


def test_weights_can_be_trained_in_place_after_generation(engine: LocalEngine) -> None:
    answer(engine, QUESTIONS[0])
    tokens = torch.tensor([engine.prompt_tokens(request())], device=engine.model.network.device)
    with engine.updating() as network:
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        losses: list[float] = []
        for _ in range(3):
            loss = network(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert losses[2] < losses[0]
    assert answer(engine, QUESTIONS[0]) == answer(engine, QUESTIONS[0])


def test_diverged_weights_are_an_error_and_leave_no_nan_behind(engine: LocalEngine) -> None:
    questions = [
        *QUESTIONS[:3],
        "turtle " * 50,
    ]  # the shorter ones use the memory of the long one that failed
    before = [answer(engine, question) for question in questions]
    weight = engine.model.network.get_input_embeddings().weight
    with engine.updating(), torch.no_grad():
        kept = weight.clone()
        weight.fill_(torch.nan)
    for _ in range(2):
        with pytest.raises(lm15.ProviderError, match=r"ModelError: the logits are not numbers"):
            answer(engine, questions[-1])
    with engine.updating(), torch.no_grad():
        weight.copy_(kept)
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda question: answer(engine, question), questions)) == before


def test_an_error_of_the_network_reaches_every_caller(engine: LocalEngine) -> None:
    broken, whole = torch.nn.Linear(3, 384), engine.model.network.get_output_embeddings()
    with engine.updating() as network:
        network.set_output_embeddings(broken)
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(answer, engine, question) for question in QUESTIONS[:4]]
    for call in calls:
        with pytest.raises(lm15.ProviderError, match="the embedded model failed: RuntimeError"):
            call.result(timeout=10)
    with engine.updating() as network:
        network.set_output_embeddings(whole)
    assert answer(engine, QUESTIONS[0])


def test_a_copy_is_the_same_engine(engine: LocalEngine) -> None:
    assert copy.deepcopy(engine) is engine
    assert copy.copy(engine) is engine


def test_a_saved_model_holds_settings_only_and_loads_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    model = LocalModel(LocalSettings(source=folder.name, dtype="float32", seed=3))
    state = model.dump_state()
    assert state == {
        "source": str(folder),
        "device": None,
        "dtype": "float32",
        "slots": 32,
        "prefix_tokens": 16384,
        "seed": 3,
        "concurrency": 32,
    }
    monkeypatch.chdir("/")
    again, pickled = LocalModel.load_state(state), pickle.loads(pickle.dumps(model))
    texts = {each.complete(request(temperature=1.0)).text for each in (model, again, pickled)}
    assert len(texts) == 1
    for each in (model, again, pickled):
        each.local.close()


def test_as_many_calls_are_batched_as_may_run_at_once(folder: Path) -> None:
    models = [LocalModel(LocalSettings(source=str(folder)), AdaptiveLimiter(limit)) for limit in (8, 48)]
    assert [model.local.settings.slots for model in models] == [32, 48]
    for model in models:
        model.local.close()


def test_calls_of_a_closed_engine_fail(engine: LocalEngine) -> None:
    answer(engine, QUESTIONS[0])
    engine.close()
    engine.close()
    with pytest.raises(lm15.ProviderError, match="the embedded model is closed: make another one"):
        answer(engine, QUESTIONS[0])
    with pytest.raises(ModelError, match="closed"), engine.updating():
        pass


def test_an_unreferenced_engine_ends_its_thread(folder: Path) -> None:
    before = {thread.ident for thread in threading.enumerate()}
    engine = LocalEngine(LocalSettings(source=str(folder)))
    answer(engine, QUESTIONS[0])
    assert {thread.ident for thread in threading.enumerate()} - before
    del engine
    gc.collect()
    assert not {thread.ident for thread in threading.enumerate()} - before
