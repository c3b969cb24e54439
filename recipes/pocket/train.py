"""Train the embedded model: ``python -m recipes.pocket.train --help``."""

import sys

from memory_program.core.command_line import parse_flags, run_script
from recipes.pocket.recipe import PretrainConfig


def main() -> None:
    """Read the flags, train, and print the last probe."""
    config = parse_flags(PretrainConfig, prog="python -m recipes.pocket.train")
    from recipes.pocket.pretraining import pretrain  # torch takes seconds to import; --help needs none of it

    progress = pretrain(config)
    print(f"{progress.tokens:,} tokens in {progress.seconds:,.0f} s: {progress.scores}")


if __name__ == "__main__":
    sys.exit(run_script(main))
