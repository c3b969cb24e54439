"""Evaluate memory systems on made-up conversations, LoCoMo or your own: ``python evaluate.py --help``."""

import sys

from memory_program.command_line import exit_status, parse_flags
from memory_program.config import EvaluateConfig


def main() -> None:
    """Read the flags, run the stages that they ask for, and print the table."""
    config = parse_flags(EvaluateConfig)

    # DSPy and the rest: --help does not wait for them
    from memory_program.evaluation.run import evaluate
    from memory_program.learning.ceiling import measure_ceiling

    evaluate(config, ceiling=measure_ceiling(config))


if __name__ == "__main__":
    sys.exit(exit_status(main))
