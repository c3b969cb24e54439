"""The tokenizer: byte-level BPE in which fixed text is one token, and a name is always the same few tokens.

Most of a rendered prompt is fixed text. Each system prompt is two tokens (the layout of the fields, and the
instruction), each header between fields is one, and so are the pieces of JSON between the arguments of a
call. Tokens are spent on content only, and any other text is encoded without loss. The prompts are those of
``memory_program/pocket/program.json``.

Words of closed classes (those that worlds with different names and things have in common) are one token each,
with the space before them. All other words are cut into pieces of at most four bytes, and no piece holds a
space. So a name has the same tokens after a space, a quote or a line break, and can be copied token by token.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import dspy
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from memory_program.agents.chat_adapter import ADAPTER
from memory_program.agents.model_prompts import read_model_prompts, saved_signature
from memory_program.agents.signatures import SPECIALISTS, AnswerQuestion
from memory_program.models.model_names import POCKET
from memory_program.worlds.rendered_prompts import prompt_structure, render_prompt

SYSTEM, USER, ASSISTANT, END = "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"

SPACE = "Ġ"
"""A space, as the vocabulary writes it."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_MAX_PIECE_BYTES = 4
_CUT = Regex(r"'(?:s|t|m|d|re|ve|ll)\b| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]|\s")

_CALLS = (
    ("manage_memory", {"action": "create", "text": "", "happened_at": ""}),
    ("manage_memory", {"action": "update", "text": "", "happened_at": "", "memory_id": ""}),
    ("delete_memory", {"reason": "", "memory_id": ""}),
    ("edit_core", {"action": "append", "text": ""}),
    ("edit_core", {"action": "replace", "old_text": "", "text": ""}),
)
"""The forms of calls whose fixed parts are tokens; the model fills in the values ``""``."""

_GAP = "\0"  # marks what changes from call to call in a rendered text


def pocket_signatures() -> list[type[dspy.Signature]]:
    """List the prompts that pocket is trained under: four writers and a reader."""
    shipped = {f"writer.{kind}": signature for kind, signature in SPECIALISTS.items()}
    saved = read_model_prompts(POCKET)
    return [
        saved_signature(signature, saved[name], POCKET)
        for name, signature in {**shipped, "reader.answer": AnswerQuestion}.items()
    ]


def fixed_texts() -> list[str]:
    """List the texts that are the same in every prompt and reply of an agent, each text once."""
    texts: list[str] = []
    for signature in pocket_signatures():
        # Every field holds a letter on a line of its own: the adapter renders empty inputs differently.
        system, user = render_prompt(signature, **dict.fromkeys(signature.input_fields, "a"))
        structure = prompt_structure(system)
        texts += [structure, system.removeprefix(structure)]
        texts += re.sub(r"(?<=\]\]\n)a(?=\n)", _GAP, user).split(_GAP)
        for name, field in signature.output_fields.items():
            is_calls = field.annotation is dspy.ToolCalls
            value = dspy.ToolCalls(tool_calls=[]) if is_calls else "a"
            reply = ADAPTER.format_assistant_message_content(signature, {name: value})
            before, _, after = reply.partition('{"tool_calls": []}' if is_calls else "a\n")
            texts += [before, after if is_calls else f"\n{after}"]
            if is_calls:
                texts += ['{"tool_calls": [', "]}"]
                for call, arguments in _CALLS:
                    filled = {key: value or _GAP for key, value in arguments.items()}
                    call_json = json.dumps({"name": call, "args": filled}, ensure_ascii=False)
                    *parts, end = call_json.replace("\\u0000", _GAP).split(_GAP)
                    texts += [*parts, end, f"{end}, {parts[0]}"]
    return [text for text in dict.fromkeys(texts) if text]


def train_tokenizer(
    texts: Sequence[str], other_texts: Sequence[str], size: int, paired_words: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """Train a tokenizer.

    Args:
        texts: the text of worlds for training.
        other_texts: the text of worlds with other names and things; words that occur in both are closed.
        size: the most tokens that it may have.
        paired_words: words that get a token for the start of a line and one for after a space, whether or not
            the texts have both.
    """
    cut = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_CUT, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    systems = [
        render_prompt(signature, **dict.fromkeys(signature.input_fields, ""))[0]
        for signature in pocket_signatures()
    ]
    counts, others = (
        Counter(word for text in (*systems, *some) for word, _ in cut.pre_tokenize_str(text))
        for some in (texts, other_texts)
    )
    common = [word for word, _ in counts.most_common() if len(word) > 1 and word in others]
    paired = [form for word in paired_words for form in (word, f"{SPACE}{word}")]
    closed = list(dict.fromkeys([*common, *paired]))
    open_words = sorted({word.removeprefix(SPACE) for word in counts if word not in others})
    added = [SYSTEM, USER, ASSISTANT, END, *fixed_texts()]
    pieces = _learn_pieces(open_words, size - len(added) - len(closed))
    vocabulary: dict[str, int] = dict(pieces.get_vocab(with_added_tokens=False))
    for word in closed:
        vocabulary.setdefault(word, len(vocabulary))
    merges = [tuple(pair) for pair in json.loads(pieces.to_str())["model"]["merges"]]
    # ignore_merges: a word in the vocabulary is one token, although no merges lead to it.
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = cut
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in added[:4]])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added[4:]])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write a tokenizer to a folder, for ``load_tokenizer``, transformers and vLLM."""
    tokenizer.save_pretrained(folder)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Read a tokenizer that ``save_tokenizer`` wrote."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


def chat_text(system: str, user: str) -> str:
    """Render a prompt as the chat template does, up to the beginning of the reply."""
    return f"{SYSTEM}{system}{END}{USER}{user}{END}{ASSISTANT}"


def _learn_pieces(words: Sequence[str], size: int) -> Tokenizer:
    """Learn the pieces of open words. Every word counts once; else frequent words would become one token."""
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
