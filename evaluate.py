"""Evaluate memory systems on LoCoMo, or on conversations of your own: ``python evaluate.py --help``."""

import sys

from memory_program.command_line import exit_status, parse_flags
from memory_program.config import EvaluateConfig


def main() -> None:
    """Read the flags, run the stages that they ask for, and print the table."""
    config = parse_flags(EvaluateConfig)

    from memory_program.evaluation.run import evaluate  # DSPy and the rest: --help does not wait for them

    evaluate(config)


if __name__ == "__main__":
    sys.exit(exit_status(main))
