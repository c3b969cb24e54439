"""Evaluate memory systems on generated data, benchmarks or your own: ``python evaluate.py --help``."""

import sys

from memory_program.cli import run_evaluate

if __name__ == "__main__":
    sys.exit(run_evaluate())
