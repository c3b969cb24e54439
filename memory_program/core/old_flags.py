"""Flags of the older systems (MemBuilder, MemUpdate, the DSPy memory), with what to use instead."""

from collections.abc import Collection
from difflib import get_close_matches

_KEYS = "keys come from the environment only: set OPENAI_API_KEY, or the variable of your provider"

_HINTS: dict[str, tuple[tuple[str, str], ...]] = {
    "api-key": (("", _KEYS),),
    "base-url": (("api-base", "use --api-base URL"),),
    "data-path": (("data", "use --data PATH"),),
    "dataset-path": (("dataset", "use --dataset PATH, or --data PATH for a benchmark's own file"),),
    "db-path": (
        ("db-url", "use --db-url sqlite:///PATH"),
        ("output-dir", "the database lies in the folder of the run: use --output-dir PATH"),
    ),
    "embedding-model": (
        ("embedder", "use --embedder NAME with --retrieval hybrid"),
        ("", "memories are found by words (BM25); vectors are for evaluate.py and Python: docs/concepts.md"),
    ),
    "expert-model": (("model", "use --model NAME"),),
    "gpu-type": (("", "GPUs are rented by SkyPilot: sky launch --gpus NAME deploy/arbor-sky.yaml"),),
    "gradient-accumulation-steps": (
        (
            "per-device-train-batch-size",
            "its passes follow from the samples of a step, --per-device-train-batch-size and the GPUs",
        ),
        (
            "batch-tokens",
            "a step accumulates as many passes as it needs: use --batch-tokens N for their size",
        ),
    ),
    "inference-gpus": (("backend", "it belongs to --backend arbor, a server with GPUs"),),
    "judge-provider": (("judge-model", "use --judge-model openai/NAME: the provider is a part of the name"),),
    "max-length": (
        ("max-completion-tokens", "use --max-completion-tokens N for replies; prompts are never cut"),
        ("", "no example is cut or left out: give the limit to the trainer (cutoff_len of LLaMA-Factory)"),
    ),
    "parallel": (
        ("concurrency", "work is always parallel: leave it out, or use --concurrency N"),
        ("", "work is always parallel: leave it out"),
    ),
    "provider": (
        ("model", "use --model openai/NAME, with --api-base for a server of your own"),
        ("reader-model", "use --reader-model openai/NAME, with --api-base for a server of your own"),
    ),
    "questions": (
        ("num-test", "use --num-test N"),
        ("num-examples", "use --num-examples N and --num-val N"),
        ("num-train", "use --num-train N"),
    ),
    "training-gpus": (("backend", "it belongs to --backend arbor, a server with GPUs"),),
    "vector-store": (
        ("retrieval", "the database of the banks keeps the vectors: use --retrieval hybrid"),
        ("", "memories are found by words (BM25); vectors are for evaluate.py and Python: docs/concepts.md"),
    ),
    "workers": (("concurrency", "use --concurrency N"), ("threads", "use --threads N")),
}
"""For each flag pairs of a flag of today and a hint. The first pair whose flag the command has is shown."""


def hint_for_flag(flag: str, known: Collection[str]) -> str:
    """Say what to use instead of a flag that a command does not have.

    Args:
        flag: without dashes before it.
        known: the flags that the command has, written the same way.

    Example:
        >>> hint_for_flag("workers", ["concurrency", "seed"]), hint_for_flag("sead", ["concurrency", "seed"])
        ('use --concurrency N', 'did you mean --seed?')
    """
    for successor, hint in _HINTS.get(flag, ()):
        if not successor or successor in known:
            return hint
    if flag in _HINTS:
        return "this command has no such setting; docs/coming-from.md has the flags of older systems"
    if flag in known:
        return "its values are given without a flag, as --help shows"
    alike = get_close_matches(flag, known, n=2)
    return (
        f"did you mean {' or '.join(f'--{name}' for name in alike)}?" if alike else "--help lists the flags"
    )
