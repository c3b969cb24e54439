"""The folder of a run: one process at a time works in it."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from memory_program.core.errors import ConfigError, RunInUseError

CONFIG_FILE = "config.json"
"""The file in a run's folder that says how it was last run."""

EMBEDDINGS_FILE = "embeddings.sqlite"
"""The vectors of texts that a run has embedded. Whoever forgets a conversation deletes all of them."""

SFT_CONVERSATIONS_FILE = "sft_conversations.json"
"""Lies beside the weights of a fine-tuned model and lists the conversations that taught it."""

LOCK_FILE = ".lock"
"""The file that a process locks while it works in a run's folder."""

BATCHES_FILE = "batches.jsonl"
"""The batches that a run has submitted: ids and hashes, no text."""


@contextmanager
def lock_run_folder(folder: Path, flag: str = "output_dir") -> Generator[None]:
    """Make the folder of a run, and keep other processes out of it; a killed process lets go of it.

    Args:
        folder: of the run.
        flag: the setting that names it.

    Raises:
        ConfigError: the folder cannot be written.
        RunInUseError: another process works in it.
    """
    named, lock = flag.replace("_", "-"), FileLock(folder / LOCK_FILE, timeout=0)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout as error:
        raise RunInUseError(
            f"another process is working in {str(folder)!r}: wait for it, or name another --{named}"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{flag}={str(folder)!r} cannot be written ({error.strerror}): name another --{named}"
        ) from error
    try:
        yield
    finally:
        lock.release()
