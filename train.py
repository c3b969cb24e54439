"""Train models of the memory program: ``python train.py --help`` lists the modes."""

import sys

from memory_program.cli import run_train

if __name__ == "__main__":
    sys.exit(run_train())
