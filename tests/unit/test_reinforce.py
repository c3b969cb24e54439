"""Training steps in this process, with real gradients on a random model of a few hundred kilobytes."""

import json
import math
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from dspy import lm15

from memory_program.configs.trainer_groups import OptimizerSettings, ReinforceSettings
from memory_program.core.errors import ConfigError, DivergenceError, ModelError, RecordError
from memory_program.inference import loading
from memory_program.inference.engine import LocalEngine, LocalSettings
from memory_program.inference.loading import load_model
from memory_program.rl.step_metrics import update_metrics
from memory_program.rl.trainer.adapters import lora_config
from memory_program.rl.trainer.objective import Objective, TokenTerms, target_logprobs, token_entropies
from memory_program.rl.trainer.packing import Sample, pack_samples
from memory_program.rl.trainer.policy_step import LocalTrainer
from memory_program.rl.trainer.token_scores import TokenScorer
from tests.tiny_model import save_tiny_model
from tests.training_samples import one_thread

PROMPT = tuple(range(40, 60))
GOOD, BAD = (70, 71, 72), (80, 81, 82, 83)
SAMPLES = [Sample(PROMPT, GOOD, 1.0), Sample(PROMPT, BAD, -1.0), Sample((1, 2, 3), BAD, 0.5)]
QUICK = {"learning_rate": 1e-3, "warmup_steps": 0}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), "llama", loudness=3.0)


def trainer(folder: Path, dtype: str = "float32", **settings: object) -> LocalTrainer:
    engine = LocalEngine(LocalSettings(source=str(folder), dtype=dtype, device="cpu"))
    return LocalTrainer(engine, ReinforceSettings(**{**QUICK, **settings}))


def likelihood(of: LocalTrainer, prompt: tuple[int, ...], completion: tuple[int, ...]) -> float:
    return likelihood_in(of.engine.model.network, prompt, completion)


def likelihood_in(
    network: transformers.PreTrainedModel, prompt: tuple[int, ...], completion: tuple[int, ...]
) -> float:
    tokens = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        logits = network(input_ids=tokens).logits[0, len(prompt) - 1 : -1]
    return float(target_logprobs(logits.float(), torch.tensor(completion)).sum())


def weights(of: LocalTrainer) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in of.engine.model.network.state_dict().items()}


def has_weights(of: LocalTrainer, expected: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(weight, expected[name]) for name, weight in weights(of).items())


@pytest.mark.parametrize("entropy_grad", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logits_in_chunks_give_the_same_scores_and_gradients(folder, temperature, entropy_grad):
    network = trainer(folder).engine.model.network
    (packed,) = pack_samples(SAMPLES, 1024)
    rows: list[int] = []
    network.get_output_embeddings().register_forward_hook(
        lambda _head, _inputs, logits: rows.append(logits.shape[-2])
    )
    found = []
    for chunk_logits, most_rows in (
        (2**25, len(packed.targets_N)),
        (3 * network.config.vocab_size, 3),
        (1, 1),
    ):
        scorer = TokenScorer(network, chunk_logits)
        rows.clear()
        logprobs, entropies = scorer.score(network, packed, temperature, entropy_grad=entropy_grad)
        assert entropies.requires_grad == entropy_grad
        network.zero_grad()
        (logprobs.sum() + entropies.sum()).backward()
        assert max(rows) == most_rows
        grads = [weight.grad.clone() for weight in network.parameters() if weight.grad is not None]
        found.append([logprobs.detach(), entropies.detach(), *grads])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (transformers.GraniteForCausalLM, {"logits_scaling": 4.0}),
        (transformers.CohereForCausalLM, {"logit_scale": 0.25}),
        (transformers.Gemma2ForCausalLM, {"final_logit_softcapping": 3.0}),
    ],
)
def test_logits_that_are_scaled_or_bounded_are_computed_in_chunks_too(kind, setting):
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    tokens = {"eos_token_id": 1, "bos_token_id": 2, "pad_token_id": 0}
    network = kind(
        kind.config_class(**sizes, **heads, **tokens, **setting, attn_implementation="eager")
    ).eval()
    (packed,) = pack_samples([Sample((3, 4, 5), (6, 7, 8, 9))], 1024)
    rows: list[int] = []
    network.get_output_embeddings().register_forward_hook(
        lambda _head, _inputs, logits: rows.append(logits.shape[-2])
    )
    scorer = TokenScorer(network, 2 * 64)
    rows.clear()
    scored, _ = scorer.score(network, packed, 1.0)
    assert max(rows) == 2
    with torch.no_grad():
        logits = network(input_ids=torch.tensor([[3, 4, 5, 6, 7, 8, 9]])).logits[0, 2:-1]
    wanted = logits.log_softmax(-1).gather(1, torch.tensor([[6], [7], [8], [9]]))[:, 0]
    torch.testing.assert_close(scored.detach(), wanted, atol=1e-5, rtol=1e-4)


def test_a_model_that_bounds_its_logits_is_scored_by_what_it_says(folder):
    class Bounded(torch.nn.Module):
        def __init__(self, network):
            super().__init__()
            self.network, self.dtype, self.device = network, network.dtype, network.device
            self.config = network.config
            self.base_model, self.get_output_embeddings = network.base_model, network.get_output_embeddings

        def forward(self, **inputs):
            output = self.network(**inputs)
            output.logits = 2 * torch.tanh(output.logits / 2)
            return output

    network = trainer(folder).engine.model.network
    (packed,) = pack_samples([Sample(PROMPT, GOOD)], 1024)
    scored, _ = TokenScorer(Bounded(network), 1).score(Bounded(network), packed, 1.0)
    with torch.no_grad():
        logits = Bounded(network)(input_ids=torch.tensor([[*PROMPT, *GOOD]])).logits[0, len(PROMPT) - 1 : -1]
    torch.testing.assert_close(scored, target_logprobs(logits, torch.tensor(GOOD)), atol=1e-5, rtol=1e-5)


def says(engine: LocalEngine) -> str:
    config = lm15.Config(temperature=0.0, max_tokens=12)
    asked = lm15.Request(model="m", messages=(lm15.Message.user("What did Nate adopt?"),), config=config)
    return engine.complete(asked).text or ""


# steps


def test_a_step_follows_the_sign_of_the_advantage(folder):
    learner = trainer(folder, beta=0.0)
    before = [likelihood(learner, PROMPT, text) for text in (GOOD, BAD)]
    reports = [learner.policy_gradient_step(SAMPLES[:2]) for _ in range(3)]
    after = [likelihood(learner, PROMPT, text) for text in (GOOD, BAD)]
    assert after[0] > before[0] + 0.1
    assert after[1] < before[1] - 0.1
    assert (reports[0].samples, reports[0].tokens, reports[0].forward_tokens) == (2, 7, 27)
    assert reports[0].clip_fraction == 0.0
    assert reports[0].grad_norm > 0


def test_the_batch_size_does_not_change_the_step(folder):
    whole, cut = (trainer(folder, batch_tokens=tokens, loss_type="grpo") for tokens in (2048, 1))
    reports = [learner.policy_gradient_step(SAMPLES) for learner in (whole, cut)]
    assert reports[0].loss == pytest.approx(reports[1].loss, abs=1e-6)
    assert reports[0].entropy == pytest.approx(reports[1].entropy, abs=1e-5)
    assert reports[0].grad_norm == pytest.approx(reports[1].grad_norm, rel=1e-4)


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo"])
def test_packed_samples_have_the_gradients_of_separate_texts(folder, monkeypatch, loss_type):
    learner = trainer(folder, beta=0.0, loss_type=loss_type, temperature=0.9, batch_tokens=40)
    network = trainer(folder).engine.model.network
    found: list[list[torch.Tensor]] = []

    def keep_gradients(_loss: float) -> float:
        found.append([weight.grad.clone() for weight in learner.engine.model.network.parameters()])
        return 0.0

    monkeypatch.setattr(learner, "_optimizer_step", keep_gradients)
    report = learner.policy_gradient_step(SAMPLES)
    objective = Objective.from_settings(learner.settings)
    lengths = [len(sample.completion) for sample in SAMPLES]
    loss = torch.zeros(())
    for sample, weight in zip(SAMPLES, objective.token_weights(lengths), strict=True):
        tokens, length = torch.tensor([[*sample.prompt, *sample.completion]]), len(sample.completion)
        logits = network(input_ids=tokens).logits[0, len(sample.prompt) - 1 : -1] / 0.9
        logprobs = target_logprobs(logits, torch.tensor(sample.completion))
        by_token = (torch.full((length,), sample.advantage), torch.full((length,), weight))
        terms = TokenTerms(
            logprobs, logprobs.detach(), None, token_entropies(logits), *by_token, sum(lengths)
        )
        loss = loss + objective.loss(terms)
    loss.backward()
    assert report.loss == pytest.approx(loss.item(), abs=1e-6)
    for weight, gradient in zip(network.parameters(), found[0], strict=True):
        assert torch.allclose(weight.grad, gradient, atol=1e-6)
    assert max(float(gradient.abs().max()) for gradient in found[0]) > 1e-3


def test_gradient_checkpointing_does_not_change_the_gradient(folder):
    plain, frugal = (trainer(folder, gradient_checkpointing=is_on) for is_on in (False, True))
    norms = [learner.policy_gradient_step(SAMPLES).grad_norm for learner in (plain, frugal)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


@pytest.mark.parametrize(("tuning", "is_checkpointed"), [("full", False), ("lora", False), ("lora", True)])
def test_the_dropout_of_a_model_is_off_as_in_sampling(tmp_path, tuning, is_checkpointed):
    """Otherwise the initial model would differ from itself."""
    save_tiny_model(tmp_path, "llama", attention_dropout=0.5)
    settings = {"tuning": tuning, "beta": 0.5, "gradient_checkpointing": is_checkpointed}
    assert trainer(tmp_path, **settings).policy_gradient_step(SAMPLES).kl == pytest.approx(0, abs=1e-6)


def test_the_dropout_of_adapters_is_a_setting(folder):
    settings = {"tuning": "lora", "learning_rate": 1e-2, "beta": 0.5}
    kls = []
    for dropout in (0.0, 0.5):
        learner = trainer(folder, lora_dropout=dropout, **settings)
        for name, weight in learner.engine.model.network.named_parameters():
            weight.data.fill_(0.05) if "lora_" in name else None
        kls.append(learner.policy_gradient_step(SAMPLES).kl)
    assert abs(kls[0] - kls[1]) > 1e-3


def test_more_iterations_on_a_batch_are_clipped(folder):
    learner = trainer(folder, iterations=4, learning_rate=0.01, beta=0.0)
    report = learner.policy_gradient_step(SAMPLES)
    assert report.clip_fraction > 0.2
    assert (learner.steps, report.forward_tokens) == (
        4,
        4 * trainer(folder).policy_gradient_step(SAMPLES).forward_tokens,
    )


def test_there_is_no_kl_without_a_reference(folder):
    report = trainer(folder, beta=0.0).policy_gradient_step(SAMPLES)
    assert report.kl is None
    assert "kl" not in update_metrics(report)
    assert update_metrics(trainer(folder, beta=0.04).policy_gradient_step(SAMPLES))["kl"] == pytest.approx(
        0, abs=1e-6
    )


def test_the_reference_is_the_initial_model(folder):
    for tuning in ("full", "lora"):
        learner = trainer(folder, tuning=tuning, beta=0.5, lora_r=4)
        first, second = learner.policy_gradient_step(SAMPLES), learner.policy_gradient_step(SAMPLES)
        assert first.kl == pytest.approx(0.0, abs=1e-6)
        assert second.kl > 1e-5


def test_a_second_job_in_one_process_keeps_the_reference(folder):
    first = trainer(folder, beta=0.5)
    first.policy_gradient_step(SAMPLES)
    assert LocalTrainer(first.engine, first.settings).policy_gradient_step(SAMPLES).kl > 1e-5


def test_sampling_and_training_agree_on_log_probabilities(folder):
    learner = trainer(folder, beta=0.0)
    config = lm15.Config(temperature=1.0, max_tokens=8, seed=3)
    asked = lm15.Request(model="m", messages=(lm15.Message.user("Who has a turtle?"),), config=config)
    reply = learner.engine.complete(asked)
    prompt = tuple(learner.engine.prompt_tokens(asked))
    tokens = tuple(token.token_id for token in reply.logprobs)
    sampled = tuple(token.logprob for token in reply.logprobs)
    assert learner.policy_gradient_step([Sample(prompt, tokens, 1.0, sampled)]).sampler_logprob_gap < 1e-4
    others = tuple(value - 1 for value in sampled)
    assert learner.policy_gradient_step([Sample(prompt, tokens, 1.0, others)]).sampler_logprob_gap > 0.5


def test_the_gap_is_a_mean_over_tokens_however_they_are_packed(folder):
    samples = [Sample(PROMPT, (70,), 1.0, (-90.0,)), Sample(PROMPT, (80, 81, 82), -1.0, (-5.0,) * 3)]
    gaps = [
        trainer(folder, batch_tokens=tokens).policy_gradient_step(samples).sampler_logprob_gap
        for tokens in (1024, 1)
    ]
    assert gaps[0] == pytest.approx(gaps[1], rel=1e-4)


def test_sft_lowers_the_loss_of_its_samples(folder):
    learner = trainer(folder, temperature=0.5)  # of sampling; SFT ignores it
    losses = [learner.sft_step([Sample(PROMPT, GOOD), Sample(PROMPT, BAD)]).loss for _ in range(5)]
    assert losses[0] == pytest.approx(
        -(likelihood(trainer(folder), PROMPT, GOOD) + likelihood(trainer(folder), PROMPT, BAD)) / 7, abs=1e-4
    )
    assert losses[-1] < losses[0] - 0.5


def test_the_engine_uses_the_new_weights_at_once(folder):
    learner = trainer(folder)
    before = says(learner.engine)
    for _ in range(3):
        learner.sft_step([Sample(PROMPT, GOOD)])
    assert says(learner.engine) != before


def test_warm_up_starts_with_a_small_rate(folder):
    cold, warm = trainer(folder, warmup_steps=0), trainer(folder, warmup_steps=100)
    first = weights(cold)
    moved = []
    for learner in (cold, warm):
        learner.policy_gradient_step(SAMPLES)
        moved.append(sum(float((now - first[name]).abs().sum()) for name, now in weights(learner).items()))
    assert moved[1] < moved[0] / 50


def test_the_ema_starts_as_a_plain_mean(folder):
    learner = trainer(folder, ema_decay=0.5)
    passed: list[dict[str, torch.Tensor]] = []
    for _ in range(3):
        learner.policy_gradient_step(SAMPLES)
        passed.append(weights(learner))
    before = says(learner.engine)
    with learner.ema_weights():
        for name, weight in weights(learner).items():
            first, second, third = (of_step[name] for of_step in passed)
            assert torch.allclose(weight, 0.5 * third + 0.5 * (first + second) / 2, atol=1e-6)
    assert has_weights(learner, passed[-1])
    assert says(learner.engine) == before


def test_without_steps_or_decay_the_ema_equals_the_weights(folder):
    for learner, steps in ((trainer(folder, ema_decay=0.5), 0), (trainer(folder), 1)):
        for _ in range(steps):
            learner.policy_gradient_step(SAMPLES)
        before = weights(learner)
        with learner.ema_weights():
            assert has_weights(learner, before)


def test_ema_weights_are_used_inside_the_block_only(folder):
    learner, plain = trainer(folder, ema_decay=0.9), trainer(folder)
    for _ in range(4):
        for each in (learner, plain):
            each.sft_step([Sample(PROMPT, GOOD)])
        with learner.ema_weights():
            assert learner.steps == 1 or likelihood(learner, PROMPT, GOOD) < likelihood(plain, PROMPT, GOOD)
    assert has_weights(learner, weights(plain))


def test_bfloat16_compute_trains_float32_weights(folder):
    exact, coarse = trainer(folder, beta=0.0), trainer(folder, beta=0.0, bf16=True)
    norms = [learner.policy_gradient_step(SAMPLES).grad_norm for learner in (exact, coarse)]
    assert norms[0] != norms[1]
    assert norms[0] == pytest.approx(norms[1], rel=0.1)
    assert {str(weight.dtype) for weight in weights(coarse).values()} == {"torch.float32"}


# adapters


def test_adapters_leave_the_base_weights_alone_and_merge_when_saved(folder, tmp_path):
    learner = trainer(folder, tuning="lora", lora_r=4)
    below = {name: weight for name, weight in weights(learner).items() if "base_layer" in name}
    for _ in range(3):
        learner.policy_gradient_step(SAMPLES)
    assert below
    assert all(torch.equal(weights(learner)[name], weight) for name, weight in below.items())
    learner.save_model(tmp_path)
    assert (tmp_path / "adapter" / "adapter_config.json").is_file()
    merged = trainer(tmp_path)
    assert likelihood(merged, PROMPT, GOOD) == pytest.approx(likelihood(learner, PROMPT, GOOD), abs=1e-4)
    assert likelihood(merged, PROMPT, GOOD) > likelihood(trainer(folder), PROMPT, GOOD) + 0.05


def test_a_training_that_starts_from_an_adapter_saves_one_over_the_base_of_both(folder, tmp_path):
    first = trainer(folder, tuning="lora", lora_r=4)
    first.policy_gradient_step(SAMPLES)
    first.save_model(tmp_path / "first")
    second = trainer(tmp_path / "first" / "adapter", tuning="lora", lora_r=2, lora_alpha=6)
    second.policy_gradient_step(SAMPLES)
    before = weights(second)
    second.save_model(tmp_path / "second")
    assert has_weights(second, before)
    adapter = tmp_path / "second" / "adapter"
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["r"]) == (str(folder), 4 + 2)
    assert {path.name for path in adapter.iterdir()} >= {"adapter_model.safetensors"}
    assert not any(path.is_dir() for path in adapter.iterdir())
    found = likelihood(second, PROMPT, GOOD)
    assert likelihood(trainer(adapter), PROMPT, GOOD) == pytest.approx(found, abs=1e-4)
    assert likelihood(first, PROMPT, GOOD) != pytest.approx(found, abs=1e-3)
    second.policy_gradient_step(SAMPLES)
    assert not has_weights(second, before)


def test_an_adapter_that_cannot_be_joined_with_another_is_refused_at_the_start(folder, tmp_path):
    trainer(folder, tuning="lora", lora_r=4).save_model(tmp_path)
    path = tmp_path / "adapter" / "adapter_config.json"
    config = json.loads(path.read_text())
    for changed, complaint in (
        ({"bias": "all"}, r"trained more than LoRA's matrices .*bias 'all'"),
        ({"lora_bias": True}, r"trained more than LoRA's matrices .*lora_bias True"),
        ({"trainable_token_indices": [1]}, r"trained more than .*trainable_token_indices \[1\]"),
        ({"target_parameters": ["up_proj.weight"]}, r"trained more than .*target_parameters"),
        ({"target_modules": ".*q_proj"}, r"names its layers by the pattern '\.\*q_proj'.*: merge it"),
    ):
        path.write_text(json.dumps({**config, **changed}))
        with pytest.raises(ModelError, match=complaint):
            lora_config(OptimizerSettings(tuning="lora"), str(tmp_path / "adapter"))


SMALL_STEPS = {"tuning": "lora", "lora_r": 4, "learning_rate": 1e-4}
"""A training whose changes are mostly smaller than half of the last digit of a bfloat16 weight."""


def test_a_training_in_bfloat16_is_loaded_as_the_policy_that_it_ended_with(folder, tmp_path):
    learner = trainer(folder, "bfloat16", **SMALL_STEPS)
    start = likelihood(learner, PROMPT, GOOD)
    for _ in range(8):
        learner.policy_gradient_step(SAMPLES)
    learner.save_model(tmp_path)
    ended = likelihood(learner, PROMPT, GOOD)
    assert abs(ended - start) > 1e-3
    for dtype, error in (("bfloat16", 1e-5), ("float32", 0.1)):
        network = load_model(str(tmp_path), "cpu", getattr(torch, dtype)).network
        assert likelihood_in(network, PROMPT, GOOD) == pytest.approx(ended, abs=error)
        assert network.dtype == getattr(torch, dtype)
    again = trainer(tmp_path, "bfloat16", **SMALL_STEPS)
    assert likelihood(again, PROMPT, GOOD) == pytest.approx(ended, abs=1e-5)
    again.policy_gradient_step(SAMPLES)
    again.save_model(tmp_path / "again")
    found = likelihood(again, PROMPT, GOOD)
    second = load_model(str(tmp_path / "again"), "cpu", torch.bfloat16).network
    assert likelihood_in(second, PROMPT, GOOD) == pytest.approx(found, abs=5e-3)  # both adapters at once
    config = json.loads((tmp_path / "again" / "adapter" / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["r"]) == (str(folder), 8)


def test_weights_that_were_rounded_are_used_with_a_warning_where_their_adapter_is_missing(
    folder, tmp_path, caplog
):
    trainer(folder, "bfloat16", **SMALL_STEPS).save_model(tmp_path)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)  # other programs need no adapter
    shutil.rmtree(tmp_path / "adapter")
    network = load_model(str(tmp_path), "cpu", torch.bfloat16).network
    assert not hasattr(network.config, "rounded_adapter")  # what is saved from it has no such adapter
    found = network.state_dict()
    assert all(torch.equal(weight, found[name]) for name, weight in plain.state_dict().items())
    assert "rounded to bfloat16" in caplog.text


def test_an_adapter_names_the_hub_id_of_its_base_and_no_folder_of_this_machine(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "snapshot_download", lambda source, **_: str(folder))
    learner = LocalTrainer(
        LocalEngine(LocalSettings(source="owner/name", dtype="float32", device="cpu")),
        ReinforceSettings(tuning="lora"),
    )
    with warnings.catch_warnings(action="error", category=UserWarning):  # PEFT warns if it asks the hub
        learner.save_model(tmp_path)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "owner/name"
    texts = [path for path in tmp_path.rglob("*") if path.suffix in (".json", ".md")]
    assert not [path.name for path in texts if str(folder) in path.read_text()]


# on disk


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_saved_weights_can_be_restored(folder, tmp_path, tuning):
    learner = trainer(folder, tuning=tuning, lora_r=4)
    learner.policy_gradient_step(SAMPLES)
    learner.save_weights(tmp_path)
    before = weights(learner)
    learner.policy_gradient_step(SAMPLES)
    assert not has_weights(learner, before)
    learner.load_weights(tmp_path)
    assert has_weights(learner, before)
    assert learner.steps == 2


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_a_resumed_training_ends_with_the_same_weights(folder, tmp_path, tuning, monkeypatch):
    settings = {"tuning": tuning, "lora_r": 4, "lora_dropout": 0.1, "ema_decay": 0.5}
    straight = trainer(folder, **settings)
    for _ in range(3):
        straight.policy_gradient_step(SAMPLES)
    begun = trainer(folder, **settings)
    begun.policy_gradient_step(SAMPLES)
    begun.save_state(tmp_path)
    again = trainer(folder, **settings)
    places: list[object] = []
    load = torch.load

    def load_somewhere(path, map_location):
        places.append(map_location)
        return load(path, map_location=map_location)

    monkeypatch.setattr(torch, "load", load_somewhere)
    again.load_state(tmp_path)
    assert places == ["cpu"]  # a GPU would hold weights and optimizer twice
    assert again.steps == 1
    for _ in range(2):
        again.policy_gradient_step(SAMPLES)
    assert has_weights(straight, weights(again))
    with straight.ema_weights(), again.ema_weights():
        assert has_weights(straight, weights(again))


def test_a_saved_model_can_be_loaded(folder, tmp_path):
    learner = trainer(folder)
    learner.sft_step(SAMPLES)
    learner.save_model(tmp_path)
    again = LocalEngine(LocalSettings(source=str(tmp_path), dtype="float32", device="cpu"))
    assert says(again) == says(learner.engine)


def test_a_checkpoint_of_another_tuning_is_refused(folder, tmp_path):
    learner = trainer(folder)
    learner.save_state(tmp_path)
    learner.save_weights(tmp_path)
    for load in ("load_state", "load_weights"):
        with pytest.raises(ModelError, match="of another model or of another kind of tuning"):
            getattr(trainer(folder, tuning="lora"), load)(tmp_path)


@pytest.mark.parametrize(("kind", "file"), [("state", "state.pt"), ("weights", "weights.safetensors")])
def test_damaged_weights_are_named_with_the_way_out(folder, tmp_path, kind, file):
    learner = trainer(folder)
    getattr(learner, f"save_{kind}")(tmp_path)
    whole = (tmp_path / file).read_bytes()
    for damaged in (b"", whole[: len(whole) // 2], b"\0" * len(whole), b"garbage" * 100):
        (tmp_path / file).write_bytes(damaged)
        with pytest.raises(RecordError, match=r"the weights in '.*' are damaged \(.*\): (delete|restore)"):
            getattr(learner, f"load_{kind}")(tmp_path)


# errors


def test_a_nan_gradient_stops_and_leaves_the_weights_alone(folder):
    learner = trainer(folder)
    before = weights(learner)
    with pytest.raises(DivergenceError, match="diverges: in step 1 the loss is nan and the gradient nan"):
        learner.policy_gradient_step([Sample(PROMPT, GOOD, math.nan)])
    assert has_weights(learner, before)
    assert learner.policy_gradient_step(SAMPLES).grad_norm > 0


def test_entropy_and_the_kl_of_adapters_are_measured_every_few_steps(folder):
    learner = trainer(folder, tuning="lora", beta=0.0, lora_r=4, diagnostics_every=2)
    reports = [learner.policy_gradient_step(SAMPLES) for _ in range(4)]
    measured = [(report.entropy is not None, report.kl is not None) for report in reports]
    assert measured == [(True, True), (False, False), (True, True), (False, False)]
    assert reports[2].kl > 0 == pytest.approx(reports[0].kl, abs=1e-6)
    assert "kl" not in update_metrics(reports[1])


def test_steps_without_diagnostics_are_the_same_steps(folder):
    often, seldom = (trainer(folder, beta=0.0, diagnostics_every=every) for every in (1, 10))
    for _ in range(3):
        losses = [learner.policy_gradient_step(SAMPLES).loss for learner in (often, seldom)]
    assert losses[0] == losses[1]
    assert has_weights(often, weights(seldom))


def test_a_step_reports_its_learning_rate_and_both_ends_of_the_clip_range(folder):
    learner = trainer(folder, learning_rate=1e-3, warmup_steps=4, iterations=3, clip_low=0.01, clip_high=1e6)
    report = learner.policy_gradient_step(SAMPLES)
    assert report.learning_rate == pytest.approx(7.5e-4)
    metrics = update_metrics(report)
    assert metrics["clip_ratio/low"] > metrics["clip_ratio/high"] == 0.0
    assert metrics["clip_fraction"] == metrics["clip_ratio/low"]
    assert "gpu_memory_gib" not in metrics, "there is no GPU"


@pytest.mark.parametrize("step", [LocalTrainer.policy_gradient_step, LocalTrainer.sft_step])
def test_a_failed_step_leaves_no_gradients(folder, monkeypatch, step):
    alone, after = (trainer(folder, batch_tokens=24, max_grad_norm=1e9, beta=0.0) for _ in range(2))
    passes, score = iter([False, True]), TokenScorer.score

    def fails_second(*arguments: object, **named: object) -> object:
        if next(passes, False):
            raise torch.OutOfMemoryError("out of memory")
        return score(*arguments, **named)

    monkeypatch.setattr(TokenScorer, "score", fails_second)
    with pytest.raises(torch.OutOfMemoryError):
        step(after, [Sample(PROMPT, BAD, 5.0), Sample(PROMPT[:5], GOOD, -5.0)])
    assert step(after, SAMPLES).grad_norm == step(alone, SAMPLES).grad_norm
    assert has_weights(after, weights(alone))


def test_half_precision_weights_are_trained_by_adapters_only(folder):
    with pytest.raises(ModelError, match=r"torch\.bfloat16 would lose small steps"):
        trainer(folder, "bfloat16")
    assert trainer(folder, "bfloat16", tuning="lora").policy_gradient_step(SAMPLES).grad_norm > 0


def test_an_unknown_setting_is_named():
    with pytest.raises(ConfigError, match="unknown setting 'lora_rank'"):
        ReinforceSettings(lora_rank=3)


def test_adapters_of_an_earlier_training_are_not_dropped_in_silence(folder: Path, caplog):
    first = trainer(folder, tuning="lora")
    assert "adapters of an earlier training" not in caplog.text
    LocalTrainer(first.engine, first.settings)
    assert "has adapters of an earlier training in this process. They are dropped" in caplog.text


def test_a_sampler_gets_the_adapter_of_every_step(folder: Path, monkeypatch):
    published: list[int] = []
    monkeypatch.setattr(LocalTrainer, "_publish", lambda self: published.append(self.steps))
    learner = trainer(folder, tuning="lora")
    learner.sft_step([Sample(PROMPT, GOOD, 1.0)])
    learner.policy_gradient_step(SAMPLES)
    assert published == [0, 1, 2]
