"""Print the tables of docs/results.md from the results in docs/results, one file per run of ``evaluate.py``.

python docs/results_table.py
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "results"
_ANSWERABLE = 505  # questions of the test split with an answer
_TYPES = ("multi-hop", "temporal", "open-domain", "single-hop")

# The rows in their order: the file, the system in it, and how they are named.
ROWS = (
    ("extractive", "extractive", "none", "extractive"),
    ("smollm2-135m-prompted", "no-memory", "SmolLM2-135M, prompted", "no-memory"),
    ("smollm2-135m-full-context", "full-context", "SmolLM2-135M, prompted", "full-context"),
    ("smollm2-135m-prompted", "rag", "SmolLM2-135M, prompted", "rag"),
    ("smollm2-135m-prompted", "observations", "SmolLM2-135M, prompted", "observations"),
    ("smollm2-135m-sft", "rag", "SmolLM2-135M, SFT", "rag"),
    ("smollm2-135m-sft", "observations", "SmolLM2-135M, SFT", "observations"),
    ("smollm2-135m-grpo", "rag", "SmolLM2-135M, SFT+GRPO", "rag"),
    ("smollm2-135m-grpo", "observations", "SmolLM2-135M, SFT+GRPO", "observations"),
    ("smollm2-135m-sft-memory", "optimized", "SmolLM2-135M, SFT", "memory"),
)

# The rows of LongMemEval.
TRANSFER_ROWS = (
    ("longmemeval-smollm2-135m-prompted", "no-memory", "SmolLM2-135M, prompted", "no-memory"),
    ("longmemeval-smollm2-135m-prompted", "rag", "SmolLM2-135M, prompted", "rag"),
    ("longmemeval-smollm2-135m-sft", "no-memory", "SmolLM2-135M, SFT", "no-memory"),
    ("longmemeval-smollm2-135m-sft", "rag", "SmolLM2-135M, SFT", "rag"),
)


def main() -> None:
    """Print all tables."""
    print(scores_table())
    print()
    print(cost_table())
    print()
    print(transfer_table())


def scores_table() -> str:
    """Make the table of scores: official F1 with its interval, by category, and abstention."""
    head = ["model", "system", "F1 (95 %)", *_TYPES, "abstention", "recall@10"]
    lines = [head, ["---"] * len(head)]
    for system, model, name in _systems():
        scores = system["locomo_f1"]
        recall = (system["recall"] or {}).get("10")
        found = "" if recall is None else f"{recall:.3f}"
        types = [f"{scores[kind]['value']:.3f}" for kind in _TYPES]
        abstention = f"{system['abstention']['value']:.3f}"
        lines.append([model, name, _interval(scores["all"]), *types, abstention, found])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cost_table() -> str:
    """Make the table of cost: tokens, calls, seconds and failures."""
    head = ["model", "system", "tokens", "calls", "failed", "F1, failed as 0", "median seconds"]
    lines = [head, ["---"] * len(head)]
    for system, model, name in _systems():
        seconds = system["latency"]["seconds"]["question"]["p50"]
        f1 = system["locomo_f1"]["all"]
        strict = f"{f1['value'] * f1['n'] / _ANSWERABLE:.3f}"
        tokens, calls = f"{system['tokens_per_question']:,.0f}", f"{system['calls']:,}"
        failed = f"{system['failures']['all']:,}"
        lines.append([model, name, tokens, calls, failed, strict, f"{seconds:.2f}"])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def transfer_table() -> str:
    """Make the table of LongMemEval: F1 over all questions that have an answer of the system."""
    head = ["model", "system", "F1 (95 %)", "n", "failed", "tokens"]
    lines = [head, ["---"] * len(head)]
    for system, model, name in _systems(TRANSFER_ROWS):
        f1 = system["locomo_f1"]["all"]
        failed, tokens = f"{system['failures']['all']}", f"{system['tokens_per_question']:,.0f}"
        lines.append([model, name, _interval(f1), f"{f1['n']}", failed, tokens])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _systems(rows: Sequence[tuple[str, str, str, str]] = ROWS) -> list[tuple[dict[str, Any], str, str]]:
    found: list[tuple[dict[str, Any], str, str]] = []
    for file, system, model, name in rows:
        path = _FOLDER / f"{file}.json"
        if path.is_file():
            found.append((json.loads(path.read_text(encoding="utf-8"))["systems"][system], model, name))
    return found


def _interval(score: dict[str, float]) -> str:
    return f"{score['value']:.3f} ({score['low']:.2f}..{score['high']:.2f})"


if __name__ == "__main__":
    main()
