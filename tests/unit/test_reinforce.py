"""Real gradients on a random model of a few hundred kilobytes."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from dspy import lm15

from memory_program.configs.trainer_groups import ReinforceSettings
from memory_program.core.errors import ConfigError, ModelError
from memory_program.inference.engine import LocalEngine, LocalSettings
from memory_program.rl.step_metrics import update_metrics
from memory_program.rl.trainer.objective import Objective, TokenTerms, kl_k3, target_logprobs, token_entropies
from memory_program.rl.trainer.packing import Sample
from memory_program.rl.trainer.policy_step import LocalTrainer
from tests.tiny_model import save_tiny_model

PROMPT = tuple(range(40, 60))
GOOD, BAD = (70, 71, 72), (80, 81, 82, 83)
SAMPLES = [Sample(PROMPT, GOOD, 1.0), Sample(PROMPT, BAD, -1.0), Sample((1, 2, 3), BAD, 0.5)]
QUICK = {"learning_rate": 1e-3, "warmup_steps": 0}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), "llama", loudness=3.0)


def trainer(folder: Path, dtype: str = "float32", **settings: object) -> LocalTrainer:
    engine = LocalEngine(LocalSettings(source=str(folder), dtype=dtype, device="cpu"))
    return LocalTrainer(engine, ReinforceSettings(**{**QUICK, **settings}))


def likelihood(of: LocalTrainer, prompt: tuple[int, ...], completion: tuple[int, ...]) -> float:
    tokens = torch.tensor([[*prompt, *completion]])
    with torch.no_grad():
        logits = of.engine.model.network(input_ids=tokens).logits[0, len(prompt) - 1 : -1]
    return float(target_logprobs(logits, torch.tensor(completion)).sum())


def weights(of: LocalTrainer) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in of.engine.model.network.state_dict().items()}


def says(engine: LocalEngine) -> str:
    config = lm15.Config(temperature=0.0, max_tokens=12)
    asked = lm15.Request(model="m", messages=(lm15.Message.user("What did Nate adopt?"),), config=config)
    return engine.complete(asked).text or ""


# the objective


def test_samples_and_tokens_are_averaged_as_the_papers_say():
    lengths = [2, 6]
    assert Objective("grpo").token_weights(lengths) == [1 / 4, 1 / 12]
    assert Objective("dapo").token_weights(lengths) == [1 / 8, 1 / 8]
    assert Objective("dr_grpo", max_completion_tokens=10).token_weights(lengths) == [1 / 20, 1 / 20]


def test_divergence_and_entropy_are_those_of_their_formulas():
    logprobs, reference = torch.tensor([-1.0, -0.5]), torch.tensor([-1.0, -1.5])
    assert kl_k3(logprobs, reference).tolist() == pytest.approx([0.0, math.exp(-1) + 1 - 1])
    assert token_entropies(torch.zeros(1, 4)).item() == pytest.approx(math.log(4))


# what a step does


def test_praise_makes_a_completion_likelier_and_blame_less_likely(folder):
    learner = trainer(folder, beta=0.0)
    before = [likelihood(learner, PROMPT, text) for text in (GOOD, BAD)]
    reports = [learner.policy_gradient_step(SAMPLES[:2]) for _ in range(3)]
    after = [likelihood(learner, PROMPT, text) for text in (GOOD, BAD)]
    assert after[0] > before[0] + 0.1
    assert after[1] < before[1] - 0.1
    assert (reports[0].samples, reports[0].tokens, reports[0].forward_tokens) == (2, 7, 27)
    assert reports[0].clip_fraction == 0.0
    assert reports[0].grad_norm > 0


def test_how_a_step_is_cut_into_passes_changes_nothing(folder):
    whole, cut = (trainer(folder, batch_tokens=tokens, loss_type="grpo") for tokens in (2048, 1))
    reports = [learner.policy_gradient_step(SAMPLES) for learner in (whole, cut)]
    assert reports[0].loss == pytest.approx(reports[1].loss, abs=1e-6)
    assert reports[0].entropy == pytest.approx(reports[1].entropy, abs=1e-5)
    assert reports[0].grad_norm == pytest.approx(reports[1].grad_norm, rel=1e-4)


def test_gradient_checkpointing_changes_nothing_but_the_memory(folder):
    plain, frugal = (trainer(folder, gradient_checkpointing=is_on) for is_on in (False, True))
    norms = [learner.policy_gradient_step(SAMPLES).grad_norm for learner in (plain, frugal)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_more_iterations_on_a_batch_leave_the_ratio_one_and_are_clipped(folder):
    learner = trainer(folder, iterations=4, learning_rate=0.01, beta=0.0)
    report = learner.policy_gradient_step(SAMPLES)
    assert report.clip_fraction > 0.2
    assert learner.steps == 4


def test_without_a_reference_nobody_says_how_far_it_is(folder):
    report = trainer(folder, beta=0.0).policy_gradient_step(SAMPLES)
    assert report.kl is None
    assert "kl" not in update_metrics(report)
    assert update_metrics(trainer(folder, beta=0.04).policy_gradient_step(SAMPLES))["kl"] == pytest.approx(
        0, abs=1e-6
    )


def test_the_reference_is_the_model_that_training_began_with(folder):
    for tuning in ("full", "lora"):
        learner = trainer(folder, tuning=tuning, beta=0.5, lora_r=4)
        first, second = learner.policy_gradient_step(SAMPLES), learner.policy_gradient_step(SAMPLES)
        assert first.kl == pytest.approx(0.0, abs=1e-6)
        assert second.kl > 1e-5


def test_a_job_that_begins_again_in_one_process_keeps_the_reference(folder):
    first = trainer(folder, beta=0.5)
    first.policy_gradient_step(SAMPLES)
    assert LocalTrainer(first.engine, first.settings).policy_gradient_step(SAMPLES).kl > 1e-5


def test_what_the_engine_sampled_has_the_log_probabilities_that_training_computes(folder):
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


def test_imitation_lowers_the_loss_of_what_is_imitated(folder):
    learner = trainer(folder, temperature=0.5)  # which is of the sampling, and not of what is imitated
    losses = [learner.sft_step([Sample(PROMPT, GOOD), Sample(PROMPT, BAD)]).loss for _ in range(5)]
    assert losses[0] == pytest.approx(
        -(likelihood(trainer(folder), PROMPT, GOOD) + likelihood(trainer(folder), PROMPT, BAD)) / 7, abs=1e-4
    )
    assert losses[-1] < losses[0] - 0.5


def test_the_engine_answers_with_the_changed_weights_at_once(folder):
    learner = trainer(folder)
    before = says(learner.engine)
    for _ in range(3):
        learner.sft_step([Sample(PROMPT, GOOD)])
    assert says(learner.engine) != before


def test_warm_up_begins_small(folder):
    cold, warm = trainer(folder, warmup_steps=0), trainer(folder, warmup_steps=100)
    first = weights(cold)
    moved = []
    for learner in (cold, warm):
        learner.policy_gradient_step(SAMPLES)
        moved.append(sum(float((now - first[name]).abs().sum()) for name, now in weights(learner).items()))
    assert moved[1] < moved[0] / 50


def test_the_average_is_the_plain_mean_at_first_and_then_forgets(folder):
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
    assert all(torch.equal(weight, passed[-1][name]) for name, weight in weights(learner).items())
    assert says(learner.engine) == before


def test_without_a_step_or_a_decay_the_average_is_the_weights(folder):
    for learner, steps in ((trainer(folder, ema_decay=0.5), 0), (trainer(folder), 1)):
        for _ in range(steps):
            learner.policy_gradient_step(SAMPLES)
        before = weights(learner)
        with learner.ema_weights():
            assert all(torch.equal(weight, before[name]) for name, weight in weights(learner).items())


def test_the_engine_answers_with_the_average_inside_the_block_and_training_goes_on_from_the_weights(folder):
    learner, plain = trainer(folder, ema_decay=0.9), trainer(folder)
    for _ in range(4):
        for each in (learner, plain):
            each.sft_step([Sample(PROMPT, GOOD)])
        with learner.ema_weights():
            assert learner.steps == 1 or likelihood(learner, PROMPT, GOOD) < likelihood(plain, PROMPT, GOOD)
    assert all(torch.equal(weight, weights(plain)[name]) for name, weight in weights(learner).items())


def test_computing_in_bfloat16_trains_weights_of_float32(folder):
    exact, coarse = trainer(folder, beta=0.0), trainer(folder, beta=0.0, bf16=True)
    norms = [learner.policy_gradient_step(SAMPLES).grad_norm for learner in (exact, coarse)]
    assert norms[0] != norms[1]
    assert norms[0] == pytest.approx(norms[1], rel=0.1)
    assert {str(weight.dtype) for weight in weights(coarse).values()} == {"torch.float32"}


# adapters


def test_adapters_leave_the_weights_below_them_alone_and_merge_when_saved(folder, tmp_path):
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


# on disk


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_one_can_go_back_to_weights_that_were_saved(folder, tmp_path, tuning):
    learner = trainer(folder, tuning=tuning, lora_r=4)
    learner.policy_gradient_step(SAMPLES)
    learner.save_weights(tmp_path)
    before = weights(learner)
    learner.policy_gradient_step(SAMPLES)
    assert any(not torch.equal(weight, before[name]) for name, weight in weights(learner).items())
    learner.load_weights(tmp_path)
    assert all(torch.equal(weight, before[name]) for name, weight in weights(learner).items())
    assert learner.steps == 2


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_training_that_is_taken_up_ends_with_the_same_weights(folder, tmp_path, tuning):
    straight = trainer(folder, tuning=tuning, lora_r=4, lora_dropout=0.1, ema_decay=0.5)
    for _ in range(3):
        straight.policy_gradient_step(SAMPLES)
    begun = trainer(folder, tuning=tuning, lora_r=4, lora_dropout=0.1, ema_decay=0.5)
    begun.policy_gradient_step(SAMPLES)
    begun.save_state(tmp_path)
    again = trainer(folder, tuning=tuning, lora_r=4, lora_dropout=0.1, ema_decay=0.5)
    again.load_state(tmp_path)
    assert again.steps == 1
    for _ in range(2):
        again.policy_gradient_step(SAMPLES)
    assert all(torch.equal(weight, weights(again)[name]) for name, weight in weights(straight).items())
    with straight.ema_weights(), again.ema_weights():
        assert all(torch.equal(weight, weights(again)[name]) for name, weight in weights(straight).items())


def test_a_saved_model_is_loaded_by_its_folder(folder, tmp_path):
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


# what is refused


def test_a_gradient_that_is_no_number_stops_and_leaves_the_weights_alone(folder):
    learner = trainer(folder)
    before = weights(learner)
    with pytest.raises(ModelError, match="the gradient of step 1 is nan: lower the learning rate"):
        learner.policy_gradient_step([Sample(PROMPT, GOOD, math.nan)])
    assert all(torch.equal(weight, before[name]) for name, weight in weights(learner).items())
    assert learner.policy_gradient_step(SAMPLES).grad_norm > 0


@pytest.mark.parametrize("step", [LocalTrainer.policy_gradient_step, LocalTrainer.sft_step])
def test_a_step_that_fails_half_way_leaves_no_gradients_to_the_next(folder, monkeypatch, step):
    alone, after = (trainer(folder, batch_tokens=24, max_grad_norm=1e9, beta=0.0) for _ in range(2))
    passes, logits = iter([False, True]), after._logits

    def fails_second(*arguments: object, **named: object) -> torch.Tensor:
        if next(passes, False):
            raise torch.OutOfMemoryError("out of memory")
        return logits(*arguments, **named)

    monkeypatch.setattr(after, "_logits", fails_second)
    with pytest.raises(torch.OutOfMemoryError):
        step(after, [Sample(PROMPT, BAD, 5.0), Sample(PROMPT[:5], GOOD, -5.0)])
    assert step(after, SAMPLES).grad_norm == step(alone, SAMPLES).grad_norm
    assert all(torch.equal(weight, weights(alone)[name]) for name, weight in weights(after).items())


def test_weights_in_half_precision_are_not_trained_and_adapters_on_them_are(folder):
    with pytest.raises(ModelError, match=r"torch\.bfloat16 would lose small steps"):
        trainer(folder, "bfloat16")
    assert trainer(folder, "bfloat16", tuning="lora").policy_gradient_step(SAMPLES).grad_norm > 0


def test_an_unknown_setting_is_named():
    with pytest.raises(ConfigError, match="unknown setting 'lora_rank'"):
        ReinforceSettings(lora_rank=3)


# the clip and the entropy of the objective, worked out by hand


def token_terms(ratios: list[float], advantages: list[float], entropies: list[float]) -> TokenTerms:
    logprobs, count = torch.tensor(ratios).log().requires_grad_(), len(ratios)
    nothing = torch.zeros(count)
    by_token = (torch.tensor(entropies), torch.tensor(advantages), torch.ones(count))
    return TokenTerms(logprobs, nothing, None, *by_token, count)


def test_a_ratio_is_clipped_where_that_makes_the_objective_smaller():
    terms = token_terms([1.5, 0.5, 1.5, 0.5], [1.0, -1.0, -1.0, 1.0], [0.0] * 4)
    loss = Objective(clip_low=0.2, clip_high=0.3).loss(terms)
    assert loss.item() == pytest.approx(-(1.3 - 0.8 - 1.5 + 0.5))
    loss.backward()
    assert terms.logprobs.grad.tolist() == pytest.approx([0.0, 0.0, 1.5, -0.5])


def test_entropy_is_rewarded():
    terms = token_terms([1.0, 1.0], [1.0, 1.0], [0.5, 1.5])
    assert Objective(entropy=0.1).loss(terms).item() == pytest.approx(-2.0 - 0.1 * 2.0 / 2)
