"""Evaluate memory systems on made-up conversations, LoCoMo or your own: ``python evaluate.py --help``."""

import sys

from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.command_line import parse_flags, run_script


def main() -> None:
    """Read the flags, run the stages that they ask for, and print the table."""
    config = parse_flags(EvaluateConfig)

    # DSPy and the rest: --help does not wait for them
    from memory_program.evaluation.evaluation_run import evaluate

    evaluate(config, with_oracle=True)


if __name__ == "__main__":
    sys.exit(run_script(main))
