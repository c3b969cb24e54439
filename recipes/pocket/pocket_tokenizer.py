"""The tokenizer: byte-level BPE in which what never changes is one token, and a name the same few always.

The rendered prompts are mostly fixed text. Each system prompt is two tokens (how the fields are laid out;
the instruction), each header between fields is one, and so are the pieces of JSON between the arguments of a
call. Only what is said costs tokens, and any other text is still encoded without loss.

Words of a closed class (those that worlds with different names and things share) are one token each, with
the space before them. All other words are cut into pieces of at most four bytes, and no piece holds a
space: so a name is the same tokens after a space, a quote or a line break, and can be copied token by token.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import dspy
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from memory_program.agents.chat_adapter import ADAPTER
from memory_program.agents.signatures import SPECIALISTS, AnswerQuestion
from memory_program.worlds.rendered_prompts import prompt_structure, render_prompt

SYSTEM, USER, ASSISTANT, END = "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"

SPACE = "Ġ"
"""How the vocabulary writes a space."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_MAX_PIECE_BYTES = 4
_CUT = Regex(r"'(?:s|t|m|d|re|ve|ll)\b| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]|\s")

_SIGNATURES = (*SPECIALISTS.values(), AnswerQuestion)
_CALLS = (
    ("manage_memory", {"action": "create", "text": "", "happened_at": ""}),
    ("manage_memory", {"action": "update", "text": "", "happened_at": "", "memory_id": ""}),
    ("delete_memory", {"reason": "", "memory_id": ""}),
    ("edit_core", {"action": "append", "text": ""}),
    ("edit_core", {"action": "replace", "old_text": "", "text": ""}),
)
"""The forms of calls whose fixed parts are tokens; ``""`` stands for what a model fills in."""


def fixed_texts() -> list[str]:
    """List what the prompts and replies of the program have in common from call to call, each text once."""
    texts: dict[str, None] = {}
    for signature in _SIGNATURES:
        for text in (*_prompt_texts(signature), *_reply_texts(signature)):
            if text:
                texts[text] = None
    return list(texts)


def train_tokenizer(
    texts: Sequence[str], other_texts: Sequence[str], size: int, alike: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Make a tokenizer.

    Args:
        texts: what worlds for training say.
        other_texts: what worlds made of other names and things say; the words that both use are closed.
        size: how many tokens it has at most.
        alike: words that are closed at the beginning of a line and after a space, whether or not the texts
            happen to have both.
    """
    cut = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_CUT, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    systems = [
        render_prompt(signature, **dict.fromkeys(signature.input_fields, ""))[0] for signature in _SIGNATURES
    ]
    counts, others = (_count_words([*systems, *some], cut) for some in (texts, other_texts))
    said = [word for word, _ in counts.most_common() if len(word) > 1 and word in others]
    closed = list(dict.fromkeys([*said, *(form for word in alike for form in (word, f"{SPACE}{word}"))]))
    open_words = sorted({word.removeprefix(SPACE) for word in counts if word not in others})
    added = [SYSTEM, USER, ASSISTANT, END, *fixed_texts()]
    pieces = _pieces(open_words, size - len(added) - len(closed))
    vocabulary: dict[str, int] = dict(pieces.get_vocab(with_added_tokens=False))
    for word in closed:
        vocabulary.setdefault(word, len(vocabulary))
    merges = [tuple(pair) for pair in json.loads(pieces.to_str())["model"]["merges"]]
    # A word that is in the vocabulary is one token, although no merges lead to it.
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in added[:4]])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added[4:]])
    return fast_tokenizer(tokenizer)


def fast_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Give a tokenizer the end of a turn and the chat template, as transformers wants them."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a tokenizer where ``load_tokenizer``, transformers and vLLM find it."""
    tokenizer.save_pretrained(folder)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Read a tokenizer that was saved."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


def chat_text(system: str, user: str) -> str:
    """Write a prompt as the chat template does, up to where the reply begins."""
    return f"{SYSTEM}{system}{END}{USER}{user}{END}{ASSISTANT}"


def _prompt_texts(signature: type[dspy.Signature]) -> Iterator[str]:
    gap = "\0"
    system, user = render_prompt(signature, **dict.fromkeys(signature.input_fields, "a"))
    structure = prompt_structure(system)
    yield structure
    yield system.removeprefix(structure)
    # The adapter takes no empty inputs for granted, so every field holds a letter on a line of its own.
    yield from re.sub(r"(?<=\]\]\n)a(?=\n)", gap, user).split(gap)


def _reply_texts(signature: type[dspy.Signature]) -> Iterator[str]:
    for name, field in signature.output_fields.items():
        is_calls = field.annotation is dspy.ToolCalls
        value = dspy.ToolCalls(tool_calls=[]) if is_calls else "a"
        written = ADAPTER.format_assistant_message_content(signature, {name: value})
        before, _, after = written.partition('{"tool_calls": []}' if is_calls else "a\n")
        yield before
        yield after if is_calls else f"\n{after}"
        if is_calls:
            yield '{"tool_calls": ['
            yield "]}"
            for call, arguments in _CALLS:
                yield from _call_texts(call, arguments)


def _call_texts(name: str, arguments: dict[str, str]) -> Iterator[str]:
    gap = "\0"
    filled = {key: value or gap for key, value in arguments.items()}
    written = json.dumps({"name": name, "args": filled}, ensure_ascii=False).replace("\\u0000", gap)
    *parts, end = written.split(gap)
    yield from parts
    yield end
    yield f"{end}, {parts[0]}"


def _count_words(texts: Iterable[str], cut: pre_tokenizers.PreTokenizer) -> Counter[str]:
    return Counter(word for text in texts for word, _ in cut.pre_tokenize_str(text))


def _pieces(words: Sequence[str], size: int) -> Tokenizer:
    """Learn what open words are made of. Every word counts once: what is frequent would be kept whole."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = BpeTrainer(
        vocab_size=size,
        min_frequency=3,
        max_token_length=_MAX_PIECE_BYTES,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(words, trainer)
    return tokenizer
