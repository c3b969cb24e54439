"""``python -m memory_program``: the command ``memory-program``, where its script is not on the path."""

import sys

from memory_program.cli import main

if __name__ == "__main__":
    sys.exit(main())
