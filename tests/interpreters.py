"""Processes that begin with the imports done: one interpreter imports once, and is forked for each program.

``python -m tests.interpreters MODULE...`` imports, and runs each program that it reads. To import torch and
transformers takes ten seconds. A process that is forked ends as any other: its threads are joined, and its
interpreter is finalized.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.conftest import CHECKOUT


@dataclass(frozen=True, slots=True)
class Ended:
    """A process that has ended: its exit status (negative: a signal killed it), and what it printed."""

    status: int
    output: str
    errors: str


class Interpreters:
    """Runs programs, each in a process of its own that has imported some modules."""

    def __init__(self, modules: Sequence[str], folder: Path) -> None:
        """Begin to import; ``folder`` gets what the processes print."""
        self._printed = [folder / name for name in ("output", "errors")]
        command = [sys.executable, "-m", "tests.interpreters", *modules]
        self._process = subprocess.Popen(
            command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def run(self, program: str) -> Ended:
        """Run a program to its end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([program, *map(str, self._printed)]), file=self._process.stdin, flush=True)
        status = int(self._process.stdout.readline())
        return Ended(status, *(path.read_text() for path in self._printed))

    def run_module(self, module: str, *arguments: object) -> Ended:
        """Run ``python -m MODULE ARGUMENT...`` to its end."""
        words = ["", *map(str, arguments)]
        run = f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
        return self.run(f"import runpy, sys\nsys.argv = {words!r}\n{run}")


def _main() -> str:
    """Fork for each line; return the program in a forked process, and nothing at the end."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        program, *printed = json.loads(line)
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for stream, path in enumerate(printed, start=1):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            return program
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return ""


if __name__ == "__main__":
    exec(compile(_main(), "<program>", "exec"), {"__name__": "__main__"})
