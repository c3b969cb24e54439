"""The training job behind DSPy's interface: groups with rewards or advantages, tokens or text."""

from collections.abc import Iterator
from pathlib import Path

import dspy
import pytest
import torch
from dspy import lm15
from dspy.clients.utils_finetune import TrainDataFormat

from memory_program.core.errors import ConfigError, ModelError
from memory_program.inference.engine import LocalSettings
from memory_program.models.local_model import LocalModel
from memory_program.rl.backends.local_backend import LocalProvider, LocalReinforceJob, require_local_engine
from memory_program.rl.trainer.packing import Sample
from tests.tiny_model import save_tiny_model
from tests.training_samples import one_thread

MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Who has a turtle?"}]
SETTINGS = {"learning_rate": 1e-3, "warmup_steps": 0, "beta": 0.0}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), "llama", loudness=3.0)


def job(folder: Path, **settings: object) -> LocalReinforceJob:
    model = LocalModel(LocalSettings(source=str(folder), dtype="float32", device="cpu"))
    lm = dspy.LM("local:tiny", engine=model, provider=LocalProvider(), cache=False)
    return lm.reinforce({**SETTINGS, **settings})


def item(reply: str, **extra: object) -> dict[str, object]:
    return {"messages": MESSAGES, "completion": {"role": "assistant", "content": reply}, **extra}


def likelihoods(of: LocalReinforceJob, *replies: str) -> list[float]:
    """Minus the SFT loss of each reply, by a step that is undone."""
    found = []
    for reply in replies:
        weights = [weight.clone() for weight in of.trainer.engine.model.network.parameters()]
        example = {"messages": [*MESSAGES, {"role": "assistant", "content": reply}]}
        found.append(-of.step([example], TrainDataFormat.CHAT).loss)
        with torch.no_grad():
            for weight, before in zip(of.trainer.engine.model.network.parameters(), weights, strict=True):
                weight.copy_(before)
    return found


def test_advantages_are_computed_from_the_rewards_of_a_group(folder):
    learner = job(folder)
    before = likelihoods(learner, "Nate.", "Joanna.")
    for _ in range(3):
        learner.step([{"group": [item("Nate.", reward=1.0), item("Joanna.", reward=0.0)]}])
    after = likelihoods(learner, "Nate.", "Joanna.")
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_a_group_of_equal_rewards_takes_no_step(folder):
    learner = job(folder)
    assert learner.step([{"group": [item("Nate.", reward=0.5), item("Joanna.", reward=0.5)]}]) is None
    assert learner.trainer.steps == 0


def test_given_advantages_are_used_unchanged(folder):
    group = [item("Nate.", reward=0.0, advantage=2.0), item("Joanna.", reward=1.0, advantage=-0.5)]
    by_job = job(folder)
    report = by_job.step([{"group": group}])
    prompt = tuple(require_local_engine(by_job.lm).prompt_tokens(
        lm15.Request(model="m", messages=(lm15.Message.user("Who has a turtle?"),), system="Be short.")
    ))  # fmt: skip
    replies = [tuple(require_local_engine(by_job.lm).reply_tokens(text)) for text in ("Nate.", "Joanna.")]
    by_hand = job(folder).trainer.policy_gradient_step(
        [Sample(prompt, replies[0], 2.0), Sample(prompt, replies[1], -0.5)]
    )
    assert report.loss == by_hand.loss
    assert report.tokens == by_hand.tokens == sum(map(len, replies))


def test_sampled_tokens_are_not_tokenized_again(folder):
    sampled = item("not this", reward=0.0, advantage=1.0, completion_tokens=(4, 5), logprobs=(-1.0, -2.0))
    report = job(folder).step([{"group": [sampled]}])
    assert report.tokens == 2
    assert report.sampler_logprob_gap is not None


def test_a_reply_ends_with_a_stop_token(folder):
    engine = require_local_engine(job(folder).lm)
    tokens = engine.reply_tokens("Nate.")
    assert tokens[-1] in engine.model.stop_ids
    assert engine.model.tokenizer.decode(tokens[:-1]) == "Nate."


def test_models_settings_and_formats_are_checked(folder):
    elsewhere = dspy.LM("openai/gpt-4.1-mini", api_key="none", provider=LocalProvider())
    with pytest.raises(ModelError, match=r"'openai/gpt-4\.1-mini' does not run in this process"):
        elsewhere.reinforce({})
    with pytest.raises(ConfigError, match="unknown setting 'lr'"):
        job(folder, lr=1.0)
    with pytest.raises(
        ModelError, match="'completion' cannot be trained on here: give 'grpo_chat' or 'chat'"
    ):
        job(folder).step([], "completion")


def test_a_checkpoint_is_a_model(folder, tmp_path):
    learner = job(folder)
    learner.save_checkpoint(str(tmp_path / "saved"))
    again = LocalModel(LocalSettings(source=learner.last_checkpoint, dtype="float32", device="cpu"))
    pairs = zip(
        again.local.model.network.parameters(), learner.trainer.engine.model.network.parameters(), strict=True
    )
    assert all(torch.equal(one, other) for one, other in pairs)
