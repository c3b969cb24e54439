"""``python -m memory_program.forget``: forget a conversation wherever runs have left something of it.

A run keeps memories in a database, replies and answers in journals, reports, and what MLflow was given. This
goes through all of it: the lines of journals that tell of the conversation are taken out, files that quote it
are deleted (a report is made anew by ``evaluate.py --mode report``), as are replies kept for resuming;
MLflow's runs and traces that quote it are deleted for good, all bytes left are searched, and its namespaces
are deleted from the database.

It goes by what was said and remembered, not by where copies should be; for a run without memories, by its
data, and by name; for trajectories and synthesized questions, by their file of the conversation. What others
share, MLflow and the pages beside the folder, is deleted if it names the conversation or quotes a line of
some length: small talk is said everywhere. A line of fewer than twelve letters, or a rewording that is in no
bank, is found only where the conversation is named beside it. What was trained on it stays in weights, and
copies elsewhere stay: backups, a tracking server's own files, the data themselves, and what was written
outside the folder of the run (a saved program with demos, a page at ``--page`` unless that is beside the
folder).
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import tyro

from memory_program.core.command_line import run_script
from memory_program.core.settings import reject_password
from memory_program.forget.run_eraser import forget_conversation


def main(arguments: Sequence[str] | None = None, prog: str = "python -m memory_program.forget") -> int:
    """Do what the command line says, and return the exit status."""
    return run_script(lambda: tyro.cli(_command, args=arguments, prog=prog))


def _command(
    namespace: str, folder: list[Path], db: str | None = None, tracking_uri: str | None = None
) -> None:
    """Forget a conversation wherever runs have left something of it: memories, journals, reports, MLflow.

    Runs of MLflow and reports beside the folder that name it, or quote a line of 30 letters or more, are
    deleted, whichever data they are of; MLflow's bin is emptied of them. Files in the folder that quote it
    are deleted, but of journals only lines, unless these do not tell whose they are (replies kept for
    resuming).
    Weights that were trained on it, and copies elsewhere, are left.

    Args:
        namespace: The conversation's id, or the whole name of its bank if it has one alone.
        folder: The folder of the run, for example runs/evaluate, or of all runs that share a database; or of
            trajectories or synthesized questions.
        db: Database of the banks; without it, each banks.sqlite in the folders, and what their settings name.
        tracking_uri: MLflow's tracking address; without it, mlflow.db beside each folder, and what its runs
            note.
    """
    for name, address in (("db", db), ("tracking_uri", tracking_uri)):
        reject_password(name, "the environment (PGPASSWORD, MLFLOW_TRACKING_PASSWORD)", address or "")
    done = forget_conversation(namespace, folder, db, tracking_uri)
    print(f"forgotten: {', '.join(done.namespaces) or namespace}")
    print(f"lines of journals: {done.lines}  runs of MLflow: {done.runs}  traces: {done.traces}")
    for path in done.files:
        print(f"deleted: {path}")
    there = {uri: tracked for uri, tracked in done.tracking.items() if tracked.was_found}
    places = ", ".join([*map(str, folder), *done.databases, *(f"MLflow at {uri}" for uri in there)])
    print(f"nothing of it is left in {places}, or reports beside")
    for uri in done.tracking.keys() - there.keys():
        print(f"no MLflow is at {uri}")
    for uri in (uri for uri, tracked in there.items() if tracked.is_in_trash):
        print(f"but {uri} has runs of it in its bin, until whoever keeps it calls mlflow gc")
    print("not looked for: what was written elsewhere (--page, --output), backups, and what weights learned")


if __name__ == "__main__":
    sys.exit(main())
