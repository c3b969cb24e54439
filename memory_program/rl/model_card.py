"""The card of a trained model: what it is, what it was trained on, what it is worth, and how to run it."""

from memory_program.configs.train_config import TrainConfig
from memory_program.core.json_files import Json

_CARD = """---
tags: [memory, reinforcement-learning, grpo]
---
# {model}, trained to remember

The writer of a memory program: it reads a session of a conversation and calls tools that write memories. It
was trained by what a frozen reader could answer from them, and is made for nothing else.

- began as: {model}; the reader, never trained: {reader}
- data: {dataset}, {train} conversations to learn from, {val} to choose on, {test} to test on
- method: GRPO ({loss_type}), {reward_rule} reward on {reward}{attribution}; {steps} steps, {samples:,}
  samples, {tuning} tuning, learning rate {learning_rate:g}, seed {seed}
- validation score: {before:.3f} before, {after:.3f} after {best_step} steps, which are these weights:
  {validated}
- test, official F1 of what has an answer, against the beginning: {gained}
- version {version}, commit {git_commit}

`program.json` holds the prompts that it was trained with; where adapters were trained, `adapter/` has them
apart. In the folder of this card:

```
python evaluate.py --dataset {dataset} --systems optimized --program program.json \\
  --writer-model local:. --reader-model {reader}
```
"""


def model_card(config: TrainConfig, results: Json) -> str:
    """Write the card.

    Args:
        config: of the training.
        results: as ``publish.make_results`` gives them.
    """
    validation = results["validation"]
    splits = {name: len(results["dataset"][name]) for name in ("train", "val", "test")}
    names = {"model", "loss_type", "reward_rule", "reward", "tuning", "learning_rate", "seed"}
    return _CARD.format(
        **config.model_dump(include=names),
        **splits,
        attribution="" if config.reward_rule == "difference" else f", alpha {config.alpha:g}",
        reader=config.reader,
        dataset=config.dataset,
        steps=results["steps"],
        samples=results["samples"],
        before=validation["first"]["score"],
        after=validation["best"]["score"],
        best_step=validation["best"]["step"],
        validated=format_difference(validation["difference"]),
        gained=format_difference(results["comparisons"]["locomo_f1"]),
        version=results["version"],
        git_commit=results["git_commit"],
    )


def format_difference(comparison: Json | None) -> str:
    """Write by how much the trained model is better, with its interval where there is one.

    Example:
        >>> format_difference({"difference": 0.12, "low": 0.1, "high": 0.2, "p_value": 0.008, "n": 90})
        '+0.120 (+0.100..+0.200, p 0.008, n 90)'
    """
    if comparison is None:
        return "nothing to compare"
    low, high, p = (comparison[name] for name in ("low", "high", "p_value"))
    interval = "one conversation" if low is None else f"{low:+.3f}..{high:+.3f}, p {p:.3f}"
    return f"{comparison['difference']:+.3f} ({interval}, n {comparison['n']})"
