"""Random language models of a few hundred kilobytes, in the format of transformers, made in a second."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT = (
    "Nate adopted a small turtle in May and named it Pebble. Joanna wrote a screenplay about the sea, "
    "sent it to a contest, and moved to a flat with a garden on the first of June 2023. "
)


def save_tiny_model(
    folder: Path,
    architecture: str = "qwen2",
    *,
    seed: int = 0,
    loudness: float = 10.0,
    text: str = _TEXT,
    tokens: int = 500,
    by_words: bool = True,
    **config: Any,
) -> Path:
    """Save a random model with a byte-level tokenizer and a ChatML template.

    Args:
        folder: where to; is made.
        architecture: as transformers calls it: qwen2, qwen3, llama.
        seed: of the weights.
        text: what the tokenizer is made of.
        tokens: the most that it may have.
        by_words: whether a token ends with its word; if not, whole sentences of the text become one.
        loudness: factor on the weights, so that its next tokens are neither all alike nor certain.
        **config: settings of the architecture other than the tiny ones.
    """
    tokenizer = _tokenizer(text, tokens, by_words)
    settings = {
        "vocab_size": 384,  # more than the tokenizer has: AutoTokenizer adds one for some architectures
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,  # tied random weights repeat the last token for ever
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **{**settings, **config}))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(loudness)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer(text: str, tokens: int, by_words: bool) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=by_words)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        chat_template=CHATML,
        model_input_names=["input_ids", "attention_mask"],
    )
