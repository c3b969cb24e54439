"""Stop strings: a reply ends where one of them appears."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase


class StopStrings:
    """The strings that end a reply; they are no part of it."""

    def __init__(self, strings: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
        """Look for strings in what a tokenizer decodes."""
        self._strings = [string for string in strings if string]
        self._tokenizer = tokenizer
        # a token has at least a byte; one more, since some tokenizers strip the space before the first one
        self._tail_tokens = max((len(string.encode()) for string in self._strings), default=0) + 1

    def end_reply(self, tokens: list[int]) -> bool:
        """Tell if the last token of a reply completes a stop string."""
        tail = self._tokenizer.decode(tokens[-self._tail_tokens :], clean_up_tokenization_spaces=False)
        return any(string in tail for string in self._strings)

    def cut(self, text: str) -> str:
        """Return the text before the first stop string."""
        return text[: min((at for string in self._strings if (at := text.find(string)) >= 0), default=None)]
