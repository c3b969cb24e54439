"""Defaults of a training by the size of its model and by its device, each with its reason.

Settings that are None take them. Nothing slow is imported.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from memory_program.configs.trainer_groups import Tuning
from memory_program.core.settings import Settings

SMALL_PARAMETERS = 20_000_000
"""Models below this size, as the embedded ones are, train all their weights in float32 on any machine."""

_PACKED = "the prompt of a group is read once, if the group fits in one pass"

SettingsT = TypeVar("SettingsT", bound=Settings)


@dataclass(frozen=True, slots=True)
class TrainingDefault:
    """The value of a setting that was left out, and the reason for it."""

    value: float | str
    reason: str


def training_defaults(
    parameters: int,
    device: str,
    method: Literal["rl", "sft"],
    *,
    has_bfloat16: bool = False,
    tuning: Tuning | None = None,
) -> dict[str, TrainingDefault]:
    """Return the defaults of a training.

    Args:
        parameters: of the model.
        device: of the model: cpu or cuda.
        method: rl trains by rewards, sft by examples.
        has_bfloat16: whether the device computes bfloat16 natively.
        tuning: what is tuned, if that was chosen; the learning rate depends on it.
    """
    is_rl, is_cuda = method == "rl", device == "cuda"
    if parameters < SMALL_PARAMETERS:
        values = {
            "tuning": "full",
            "learning_rate": 3e-4 if is_rl else 1e-4,
            "warmup_steps": 2 if is_rl else 10,
            "ema_decay": 0.9,
            "beta": 0.04,
            "bf16": False,
            "batch_tokens": 1024,
            "save_every": 1,
            "loss_per_agent": False,
            "refill_rounds": 0,
            "diagnostics_every": 1,
        }
        reason = f"suits a small model ({parameters / 1e6:.1f} million parameters)"
        return {name: TrainingDefault(value, reason) for name, value in values.items()}
    is_lora, is_bf16 = tuning != "full", is_cuda and has_bfloat16
    rate = (2e-5 if is_lora else 1e-6) if is_rl else (1e-4 if is_lora else 1e-5)
    return {
        "tuning": TrainingDefault(
            "lora",
            f"all {parameters / 1e6:,.0f} million weights would take {parameters * 16 / 2**30:,.1f} GiB with "
            "gradients and AdamW's state",
        ),
        "learning_rate": TrainingDefault(rate, f"usual for {'adapters' if is_lora else 'all weights'}"),
        "warmup_steps": TrainingDefault(10, "usual for large models"),
        "ema_decay": TrainingDefault(0.0, "an EMA is one more copy of the trained weights"),
        "beta": TrainingDefault(
            0.0, "a KL penalty costs a forward pass, and in full tuning a copy of the model"
        ),
        "bf16": TrainingDefault(
            is_bf16, "this GPU computes it natively" if is_bf16 else "float32 is exact on this device"
        ),
        "batch_tokens": TrainingDefault(8192 if is_cuda else 4096, _PACKED),
        "save_every": TrainingDefault(10, "writing the optimizer's state takes time"),
        "loss_per_agent": TrainingDefault(True, "long replies of one agent would drown out those of another"),
        "refill_rounds": TrainingDefault(1, "groups with equal rewards teach nothing"),
        "diagnostics_every": TrainingDefault(10, "they cost a pass over the logits, and KL one of the model"),
    }


def fill_in_defaults(
    settings: SettingsT,
    parameters: int,
    device: str,
    method: Literal["rl", "sft"],
    *,
    has_bfloat16: bool,
    say: Callable[[str], None] = lambda line: None,
) -> SettingsT:
    """Give the settings that were left out, which are None, the defaults of ``training_defaults``.

    Args:
        settings: of a training.
        parameters: of the model.
        device: of the model.
        method: of the training.
        has_bfloat16: whether the device computes bfloat16 natively.
        say: called with a line for each reason.
    """
    values = settings.flat_values()
    tuning: Tuning | None = values["tuning"]
    defaults = training_defaults(parameters, device, method, has_bfloat16=has_bfloat16, tuning=tuning)
    left_out = {name: default for name, default in defaults.items() if values.get(name, "") is None}
    flags_by_reason: dict[str, list[str]] = {}
    for name, default in left_out.items():
        flag = name.replace("_", "-")
        shown = f"--{flag} {default.value}"
        if isinstance(default.value, bool):
            shown = f"--{flag}" if default.value else f"--no-{flag}"
        flags_by_reason.setdefault(default.reason, []).append(shown)
    for reason, flags in flags_by_reason.items():
        say(f"default {', '.join(flags)}: {reason}")
    return settings.replace(**{name: default.value for name, default in left_out.items()})
