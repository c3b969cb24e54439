"""Improve the prompts of the memory program: ``python optimize.py --help``."""

import sys

from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.core.command_line import parse_flags, run_script


def main() -> None:
    """Read the flags, look for better prompts, and save the best."""
    config = parse_flags(OptimizeConfig)

    from memory_program.optimization.optimization_run import (
        optimize,  # DSPy and the rest: --help does not wait for them
    )

    optimize(config)


if __name__ == "__main__":
    sys.exit(run_script(main))
