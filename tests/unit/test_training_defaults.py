"""Defaults of a training by the size of its model and by its device."""

import pytest

from memory_program.configs.sft_config import FineTuneConfig
from memory_program.configs.train_config import TrainConfig
from memory_program.configs.trainer_groups import ReinforceSettings, lasting_settings
from memory_program.configs.training_defaults import fill_in_defaults, training_defaults

POCKET, LARGE = 5_879_040, 3_085_938_688
OPTIMIZER = ("tuning", "learning_rate", "warmup_steps", "ema_decay", "bf16", "batch_tokens")


def chosen(config, parameters, device, method, **flags):
    filled = fill_in_defaults(config(**flags), parameters, device, method, has_bfloat16=True).flat_values()
    return {name: filled[name] for name in (*OPTIMIZER, "beta", "save_every") if name in filled}


@pytest.mark.parametrize(
    ("config", "method", "parameters", "device", "flags", "expected"),
    [
        # those of version 0.2: a model that comes with the program is trained as before
        (TrainConfig, "rl", POCKET, "cpu", {}, ("full", 3e-4, 2, 0.9, False, 1024, 0.04, 1)),
        (TrainConfig, "rl", POCKET, "cuda", {}, ("full", 3e-4, 2, 0.9, False, 1024, 0.04, 1)),
        (FineTuneConfig, "sft", POCKET, "cpu", {}, ("full", 1e-4, 10, False, 1024)),
        (TrainConfig, "rl", LARGE, "cuda", {}, ("lora", 2e-5, 10, 0.0, True, 8192, 0.0, 10)),
        (TrainConfig, "rl", LARGE, "cpu", {}, ("lora", 2e-5, 10, 0.0, False, 4096, 0.0, 10)),
        (TrainConfig, "rl", LARGE, "cuda", {"tuning": "full"}, ("full", 1e-6, 10, 0.0, True, 8192, 0.0, 10)),
        (FineTuneConfig, "sft", LARGE, "cuda", {}, ("lora", 1e-4, 10, True, 8192)),
        (FineTuneConfig, "sft", LARGE, "cuda", {"tuning": "full"}, ("full", 1e-5, 10, True, 8192)),
        (
            TrainConfig,
            "rl",
            LARGE,
            "cuda",
            {"bf16": False, "beta": 0.01, "save_every": 3, "ema_decay": 0.5, "learning_rate": 1e-4},
            ("lora", 1e-4, 10, 0.5, False, 8192, 0.01, 3),
        ),
    ],
)
def test_settings_that_are_left_out_suit_the_model_and_the_device(
    config, method, parameters, device, flags, expected
):
    assert tuple(chosen(config, parameters, device, method, **flags).values()) == expected


def test_a_gpu_without_bfloat16_computes_in_float32():
    defaults = training_defaults(LARGE, "cuda", "rl", has_bfloat16=False)
    assert defaults["bf16"].value is False


def test_each_default_is_shown_once_with_its_reason():
    lines: list[str] = []
    config = TrainConfig(bf16=False)
    filled = fill_in_defaults(config, LARGE, "cuda", "rl", has_bfloat16=True, say=lines.append)
    assert lines == [
        "default --tuning lora: all 3,086 million weights would take 46.0 GiB with gradients and AdamW's "
        "state",
        "default --learning-rate 2e-05: usual for adapters",
        "default --warmup-steps 10: usual for large models",
        "default --ema-decay 0.0: an EMA is one more copy of the trained weights",
        "default --beta 0.0: a KL penalty costs a forward pass, and in full tuning a copy of the model",
        "default --batch-tokens 8192: the prompt of a group is read once, if the group fits in one pass",
        "default --save-every 10: writing the optimizer's state takes time",
        "default --loss-per-agent: long replies of one agent would drown out those of another",
        "default --refill-rounds 1: groups with equal rewards teach nothing",
        "default --diagnostics-every 10: they cost a pass over the logits, and KL one of the model",
    ]
    assert fill_in_defaults(filled, LARGE, "cuda", "rl", has_bfloat16=True, say=lines.append) == filled
    assert len(lines) == 10, "a setting that was filled in is not filled in again"


def test_adapters_have_rank_32_and_scale_two():
    optimizer = TrainConfig().trainer.optimizer
    assert (optimizer.lora_r, optimizer.lora_alpha) == (32, 64)


def test_the_settings_of_adapters_do_not_bind_full_tuning():
    one, other = (ReinforceSettings(tuning="full", lora_r=r) for r in (32, 64))
    assert lasting_settings(one) == lasting_settings(other)
    one, other = (ReinforceSettings(tuning="lora", lora_r=r) for r in (32, 64))
    assert lasting_settings(one) != lasting_settings(other)
