"""Train models of the program: ``python train.py --help``."""

import sys

from memory_program.command_line import exit_status, parse_flags
from memory_program.pocket.recipe import PretrainConfig


def main() -> None:
    """Read the flags, train, and print the last probe."""
    config = parse_flags(PretrainConfig)

    from memory_program.pocket.training import pretrain  # torch and the rest: --help does not wait for them

    progress = pretrain(config)
    print(f"{progress.tokens:,} tokens in {progress.seconds:,.0f} s: {progress.scores}")


if __name__ == "__main__":
    sys.exit(exit_status(main))
