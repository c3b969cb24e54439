"""The model card of a trained writer or reader: origin, data, method, scores, and how to run it."""

import shlex

from memory_program.configs.groups import SystemSettings
from memory_program.configs.train_config import TrainConfig
from memory_program.core.json_files import Json
from memory_program.models.model_names import OBSERVATIONS

_CARD = """---
tags: [memory, reinforcement-learning, grpo]
---
# {model}, trained as a memory {parts}

{about} It is made for this task only.

- base model: {model}{frozen}
- data: {dataset}, {train} training conversations, {val} for validation, {test} for testing
- method: GRPO ({loss_type}), {reward}; {steps} steps, {samples:,}
  samples, {tuning} tuning, learning rate {learning_rate:g}, seed {seed}
{validated}
- test, official F1 on answerable questions, trained minus base: {gained}
- version {version}, commit {git_commit}

`program.json` holds the prompts of the training. If adapters were trained, `adapter/` holds them separately.
Run it in the folder of this card:

```
python evaluate.py --dataset {dataset} {program} \\
  {models}{settings}
```
"""

_WRITER = """The writer of a memory program: it reads a session of a conversation and calls tools that write
memories. Its reward was the score of a frozen reader's answers from these memories."""

_READER = """The reader of a memory program (its weights are in `reader/`): it answers a question from the
memories that retrieval finds. Its reward was the score of its answer; the writer was frozen."""

_VALIDATED = """\
- validation score{of_part}: {before:.3f} before training, {after:.3f} after {steps} steps (these weights):
  {difference}"""


def model_card(config: TrainConfig, results: Json) -> str:
    """Write the card.

    Args:
        config: of the training.
        results: of ``make_training_results``.
    """
    rewards, parts = config.grpo.rewards, config.parts
    splits = {name: len(results["dataset"][name]) for name in ("train", "val", "test")}
    names = {"model", "loss_type", "tuning", "learning_rate", "seed"}
    attribution = "" if rewards.reward_rule == "leave-one-out" else f", alpha {rewards.alpha:g}"
    metric = config.grading.metric
    if parts == ("reader",):
        models, frozen = f"--writer-model {config.writer}", f"; frozen writer: {config.writer}"
        reward = f"{metric} of an answer as its reward"
    else:
        models, frozen = "--writer-model local:.", ""
        reward = f"{rewards.reward_rule} reward on {metric}{attribution}"
    if "reader" not in parts:
        models, frozen = f"{models} --reader-model {config.reader}", f"; frozen reader: {config.reader}"
    program = "--systems optimized --program program.json"
    if config.writer == OBSERVATIONS:
        program, models = "--systems memory", f"--writer-model {OBSERVATIONS} --reader-model local:reader"
    validated = [
        _VALIDATED.format(
            of_part=f" of the {part}" if len(parts) > 1 else "",
            before=found["first"]["score"],
            after=found["best"]["score"],
            steps=found["best"]["step"],
            difference=format_difference(found["difference"]),
        )
        for part in parts
        for found in (results["trainings"][part]["validation"],)
    ]
    return _CARD.format(
        **config.model_dump(include=names),
        **splits,
        parts=" and ".join(parts),
        about=" ".join({"writer": _WRITER, "reader": _READER}[part] for part in parts),
        frozen=frozen,
        reward=reward,
        program=program,
        models=models,
        settings=_system_flags(config.system),
        dataset=config.source.dataset,
        steps=results["steps"],
        samples=results["samples"],
        validated="\n".join(validated),
        gained=format_difference(results["comparisons"]["locomo_f1"]),
        version=results["version"],
        git_commit=results["git_commit"],
    )


def _system_flags(system: SystemSettings) -> str:
    """Write the settings that are not the default as flags; the program holds the format of replies."""
    defaults, flags = SystemSettings().flat_values(), list[str]()
    for name, value in system.flat_values().items():
        flag = name.replace("_", "-")
        if name == "reply_format" or value == defaults[name]:
            continue
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags.append(f"--{flag} {shlex.quote(str(value))}")
    return f" \\\n  {' '.join(flags)}" if flags else ""


def format_difference(comparison: Json | None) -> str:
    """Format the difference of two scores, with its interval if there is one.

    Example:
        >>> format_difference({"difference": 0.12, "low": 0.1, "high": 0.2, "p_value": 0.008, "n": 90})
        '+0.120 (+0.100..+0.200, p 0.008, n 90)'
    """
    if comparison is None:
        return "nothing to compare"
    low, high, p = (comparison[name] for name in ("low", "high", "p_value"))
    interval = "one conversation" if low is None else f"{low:+.3f}..{high:+.3f}, p {p:.3f}"
    return f"{comparison['difference']:+.3f} ({interval}, n {comparison['n']})"
