"""The right form of a model's name that names no provider, or no provider that is known."""

import re

from memory_program.models.usage import listed_models

_PROVIDERS = ("openai", "anthropic", "gemini", "mistral", "deepseek", "xai", "cohere", "moonshot")
_LEAST_ALIKE = 0.6  # of the words of both names


def name_hint(name: str) -> str:
    """Say what a name may have meant; empty where nothing is alike.

    Example:
        >>> name_hint("claude-4.5-sonnet")
        "did you mean 'anthropic/claude-sonnet-4-5'?"
    """
    if "/" in name:
        return (
            f"if it is an id on the Hugging Face hub, use 'local:{name}' to run it in this process, "
            f"'vllm:{name}' to start a vLLM server for it, or 'openai/{name}' with --api-base for a server "
            "that has it"
        )
    listed = suggest_name(name)
    if listed is not None:
        return f"did you mean {listed!r}?"
    return f"use 'openai/{name}' with --api-base for a server that has it, or 'ollama/{name}' for Ollama"


def suggest_name(name: str) -> str | None:
    """Find the listed model whose name has the most words in common; None if none has enough."""
    words = _words(name)
    best: tuple[float, int, int, str] | None = None
    for listed, entry in listed_models().items():
        provider, slash, bare = listed.rpartition("/")
        provider = provider if slash else str(entry.get("litellm_provider", ""))
        if provider not in _PROVIDERS:
            continue
        others = _words(bare)
        alike = len(words & others) / len(words | others)
        rank = (-alike, _PROVIDERS.index(provider), len(bare), f"{provider}/{bare}")
        if alike >= _LEAST_ALIKE and (best is None or rank < best):
            best = rank
    return None if best is None else best[3]


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z]+|\d+", name.lower()))
