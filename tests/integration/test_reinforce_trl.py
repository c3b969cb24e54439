"""The same batch through TRL's GRPOTrainer and through ours: the same loss and the same gradients."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from torch import Tensor

from memory_program.configs.trainer_groups import ReinforceSettings
from memory_program.inference.engine import LocalEngine, LocalSettings
from memory_program.rl.trainer.packing import Sample
from memory_program.rl.trainer.policy_step import LocalTrainer
from tests.tiny_model import save_tiny_model

PROMPTS = [tuple(range(10, 31)), tuple(range(40, 52))]  # of different lengths
COMPLETIONS = [(60, 61, 62, 63, 64), (60, 61), (70, 71, 72), (80, 81, 82, 83), (90,), (60, 61, 85)]
ADVANTAGES = [1.5, -0.5, -1.0, 2.0, -1.25, -0.75]
TEMPERATURE, BETA = 0.9, 0.04


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), "llama", loudness=4.0)


class Moved(LocalTrainer):
    """Keeps the gradients and, in the place of the optimiser, moves the weights to where they shall be."""

    moved: list[Tensor]

    def __init__(self, engine: LocalEngine, settings: ReinforceSettings) -> None:
        super().__init__(engine, settings)
        self.gradients: list[list[Tensor]] = []

    def _step(self) -> float:
        network = self.engine.model.network
        self.gradients.append([weight.grad.clone() for weight in network.parameters()])
        network.zero_grad()
        with torch.no_grad():
            for weight, value in zip(network.parameters(), self.moved, strict=True):
                weight.copy_(value)
        return 0.0


def samples() -> list[Sample]:
    prompts = [PROMPTS[index // 3] for index in range(6)]
    return [Sample(*parts) for parts in zip(prompts, COMPLETIONS, ADVANTAGES, strict=True)]


def padded(rows: list[tuple[int, ...]], *, left: bool) -> tuple[Tensor, Tensor]:
    width = max(map(len, rows))
    ids, mask = (
        torch.zeros(len(rows), width, dtype=torch.long),
        torch.zeros(len(rows), width, dtype=torch.long),
    )
    for row, tokens in enumerate(rows):
        place = slice(width - len(tokens), width) if left else slice(0, len(tokens))
        ids[row, place], mask[row, place] = torch.tensor(tokens), 1
    return ids, mask


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo"])
def test_loss_and_gradients_are_those_of_trl(folder, tmp_path, loss_type):
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    model = AutoModelForCausalLM.from_pretrained(folder)
    arguments = GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=6,
        num_generations=3,
        max_completion_length=8,
        temperature=TEMPERATURE,
        beta=BETA,
        loss_type=loss_type,
        epsilon=0.2,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
    )
    theirs = GRPOTrainer(
        model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    theirs.current_gradient_accumulation_steps = 1
    model.train()
    prompt_ids, prompt_mask = padded([sample.prompt for sample in samples()], left=True)
    completion_ids, completion_mask = padded(COMPLETIONS, left=False)
    with torch.no_grad():  # so that the ratios are not 1: the policy has moved since it sampled
        moved = [weight * 1.002 for weight in model.parameters()]
    inputs = {
        "prompt_ids": prompt_ids,
        "prompt_mask": prompt_mask,
        "completion_ids": completion_ids,
        "completion_mask": completion_mask,
        "advantages": torch.tensor(ADVANTAGES),
        "num_items_in_batch": completion_mask.sum(),
    }
    ids, mask = torch.cat([prompt_ids, completion_ids], 1), torch.cat([prompt_mask, completion_mask], 1)
    with torch.no_grad():
        old, _, _ = theirs._get_per_token_logps_and_entropies(model, ids, mask, completion_ids.shape[1])
    inputs |= {"old_per_token_logps": old, "ref_per_token_logps": old}
    with torch.no_grad():
        for weight, value in zip(model.parameters(), moved, strict=True):
            weight.copy_(value)
    their_loss = theirs._compute_loss(model, inputs)
    their_loss.backward()

    engine = LocalEngine(LocalSettings(source=str(folder), dtype="float32", device="cpu"))
    settings = ReinforceSettings(
        loss_type=loss_type, beta=BETA, temperature=TEMPERATURE, max_completion_tokens=8, batch_tokens=40,
        iterations=2, max_grad_norm=1e9,
    )  # fmt: skip
    trainer = Moved(engine, settings)
    trainer.moved = moved
    report = trainer.policy_gradient_step(samples())
    engine.close()
    assert len(trainer.gradients) == 2
    assert report.loss == pytest.approx(float(their_loss.detach()), abs=1e-5)
    assert report.kl == pytest.approx(0, abs=1e-6)  # as it was when the samples were drawn
    for weight, mine in zip(model.parameters(), trainer.gradients[1], strict=True):
        assert float((weight.grad - mine).abs().max()) < 1e-5
    assert max(float(mine.abs().max()) for mine in trainer.gradients[1]) > 1e-3
