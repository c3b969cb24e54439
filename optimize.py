"""Improve the prompts of the memory program: ``python optimize.py --help``."""

import sys

from memory_program.command_line import exit_status, parse_flags
from memory_program.optimize_config import OptimizeConfig


def main() -> None:
    """Read the flags, look for better prompts, and save the best."""
    config = parse_flags(OptimizeConfig)

    from memory_program.optimization.run import optimize  # DSPy and the rest: --help does not wait for them

    optimize(config)


if __name__ == "__main__":
    sys.exit(exit_status(main))
