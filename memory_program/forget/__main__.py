"""Erase a conversation from everything that runs have written.

It deletes the following, and then searches every byte that is left:

- the namespaces of the conversation in the databases of the banks;
- lines of journals that quote or name it;
- files of cached replies, as a whole, since a reply does not name its conversation;
- other files in the folder that quote or name it (evaluate.py --mode report writes a new report);
- MLflow traces that name it, or quote a line of 12 letters or more;
- MLflow runs, and reports beside the folder, that name it, or quote a line of 30 letters or more
  (they may be of other runs, and shorter small talk occurs in all of them).

Copies are recognized by the texts of turns and memories. For a run without memories these come from its
dataset, for trajectories and synthesized questions from their file of the conversation. Lines under 12
letters, and paraphrases that are in no bank, are found only next to the conversation's id.

Not erased: weights that were trained on it, backups, the files of a tracking server, the dataset, and
files outside the folder of the run (a saved program with demos, a report written with --report-file).
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from memory_program.core.command_line import run_script
from memory_program.core.mlflow_address import is_database_server
from memory_program.core.settings import reject_password
from memory_program.forget.run_eraser import forget_conversation

_Address = Annotated[str | None, tyro.conf.arg(help_behavior_hint="")]  # the text says what None means


def main(arguments: Sequence[str] | None = None, prog: str = "python -m memory_program.forget") -> int:
    """Erase the conversation that the arguments name, and return the exit status."""
    return run_script(lambda: tyro.cli(_command, args=arguments, prog=prog, description=__doc__))


def _command(namespace: str, folder: list[Path], db: _Address = None, tracking_uri: _Address = None) -> None:
    """Erase a conversation.

    Args:
        namespace: The conversation's id, or the whole name of its bank if it has only one.
        folder: Folders of runs, trajectories or synthesized questions. Give all runs that share a database.
        db: Database of the banks, besides each banks.sqlite in the folders; by default, from their settings.
        tracking_uri: MLflow tracking URI; by default, mlflow.db beside each folder, and those of its runs.
    """
    for name, address in (("db", db), ("tracking_uri", tracking_uri)):
        reject_password(name, "the environment (PGPASSWORD, MLFLOW_TRACKING_PASSWORD)", address or "")
    done = forget_conversation(namespace, folder, db, tracking_uri)
    print(f"forgotten: {', '.join(done.namespaces) or namespace}")
    runs = sum(deleted.runs for deleted in done.tracking.values())
    traces = sum(deleted.traces for deleted in done.tracking.values())
    print(f"journal lines: {done.lines}  MLflow runs: {runs}  MLflow traces: {traces}")
    for path in done.files:
        print(f"deleted: {path}")
    found = {uri: tracked for uri, tracked in done.tracking.items() if tracked.was_found}
    rewritten = [uri for uri in found if not is_database_server(uri)]
    places = ", ".join([*map(str, folder), *done.databases, *(f"MLflow at {uri}" for uri in rewritten)])
    print(f"nothing of it is left in {places}, or in reports beside the folders")
    for url, left in done.left.items():
        print(f"{url}: {left}")
    for uri in done.tracking.keys() - found.keys():
        print(f"there is no MLflow database at {uri}")
    for uri in (uri for uri, tracked in found.items() if tracked.is_in_trash):
        print(f"{uri} keeps deleted runs in its trash until its operator calls mlflow gc")
    for uri in filter(is_database_server, found):
        print(f"{uri} keeps the bytes of deleted rows until its operator calls VACUUM FULL, or the like")
    print("not searched: files elsewhere (--report-file, --output), backups, and trained weights")


if __name__ == "__main__":
    sys.exit(main())
