"""Replies of the model that writes instructions: a bad one is dropped, and asked for anew."""

from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from locomo.reply_markers import is_no_value, marker_pattern, separate_markers
from locomo.thinking import strip_thinking
from memory_program.core.errors import OptimizationError, one_line
from memory_program.models.usage import track_usage
from memory_program.optimization.reply_cache import CachedLM

MAX_ASKED = 3
"""The most replies that are asked for in place of one that is cut, empty or unreadable."""


class ProposalAdapter(dspy.ChatAdapter):
    """ChatAdapter that asks for another reply if one is cut off, empty or cannot be read.

    Each try is another sample, with an entry of its own in the reply cache: a run that is repeated finds the
    good reply after the bad one. If every try fails, the instruction stays as it was, so that the optimiser
    goes on; any other field is an error, which MIPROv2 handles. A reply that is cut without a word of it
    cannot be told from a whole one.
    """

    def __init__(self) -> None:
        """Make the adapter."""
        super().__init__(use_json_adapter_fallback=False)
        self.accepted = 0
        self.dropped = 0
        self.first_reason = ""

    def __call__(  # Any: as DSPy declares it
        self,
        lm: dspy.BaseLM,
        lm_kwargs: dict[str, Any],
        signature: type[dspy.Signature],
        demos: list[dict[str, Any]],
        inputs: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """Call the model, again if need be, and read its reply.

        Raises:
            AdapterParseError: no try gave a reply that can be used, and it is no instruction.
            dspy.LMError: the model could not be asked.
        """
        asked, is_instruction = lm, "proposed_instruction" in signature.output_fields
        for shift in range(1, MAX_ASKED + 1):
            failure = None
            try:
                with track_usage() as meter:
                    fields = super().__call__(asked, dict(lm_kwargs), signature, demos, inputs)
                if meter.calls and meter.calls[-1].is_truncated:
                    failure = "the reply reached the limit of tokens"
                elif any(is_no_value(str(value)) for found in fields for value in found.values()):
                    failure = "the reply has an empty field"
            except AdapterParseError as error:
                fields, failure = [], one_line(error)
            if failure is None:
                self.accepted += is_instruction
                return fields
            self.dropped += is_instruction
            self.first_reason = self.first_reason or failure
            print(f"A proposal was dropped, try {shift} of {MAX_ASKED}: {failure}")  # to the optimiser's log
            if isinstance(lm, CachedLM):
                asked = lm.copy(rollout_id=lm.cached_engine.sample + shift)
        if is_instruction:
            return [{"proposed_instruction": inputs["basic_instruction"]}]
        raise AdapterParseError(
            adapter_name="ProposalAdapter",
            signature=signature,  # pyright: ignore[reportArgumentType]  # DSPy means the class
            lm_response=self.first_reason,
            message=f"{MAX_ASKED} replies could not be used",
        )

    def parse(self, signature: type[dspy.Signature], completion: str) -> dict[str, Any]:
        """Read the reply's fields, without thoughts and without tokens that end the turn.

        Raises:
            AdapterParseError: a field is missing.
        """
        fields = marker_pattern([*signature.output_fields, "completed"])
        return super().parse(signature, separate_markers(strip_thinking(completion), fields))

    def require_success(self) -> None:
        """Check that some proposed instruction could be read, if any was asked for.

        Raises:
            OptimizationError: none could.
        """
        if self.dropped and not self.accepted:
            raise OptimizationError(
                f"none of {self.dropped} proposed instructions could be read; the first: {self.first_reason}"
            )
