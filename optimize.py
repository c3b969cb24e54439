"""Improve the prompts of the memory program: ``python optimize.py --help``."""

import sys

from memory_program.cli import run_optimize

if __name__ == "__main__":
    sys.exit(run_optimize())
