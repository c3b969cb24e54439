"""What the scripts share: flags made from a config, and errors as one line and an exit status."""

import os
import select
import sys
from collections.abc import Callable, Collection, Sequence
from inspect import cleandoc
from typing import Any, TypeVar

import tyro

from locomo.errors import BenchmarkError
from memory_program.errors import ConfigError, MemoryProgramError, ModelError, RecordError
from memory_program.settings import Settings

BAD_INPUT, FAILED, INTERRUPTED, UNHEARD = 2, 1, 130, 141
"""Exit statuses: nothing was started; the run stopped; the user stopped it (128 + SIGINT); whoever read its
output has gone (128 + SIGPIPE)."""

_NOTHING_STARTED = (ConfigError, BenchmarkError, ModelError, RecordError, FileNotFoundError)

ConfigT = TypeVar("ConfigT", bound=Settings)


def parse_flags(
    config_type: type[ConfigT], arguments: Sequence[str] | None = None, *, about: str = ""
) -> ConfigT:
    """Build a config from the command line; help comes from the docstrings of its fields.

    Args:
        config_type: the config to build.
        arguments: what to parse; None takes ``sys.argv``.
        about: what help says of the script, after the docstring of the config.

    Raises:
        ConfigError: a setting is out of range, or contradicts another one.
        SystemExit: help was asked for (0), or a flag is unknown or of another type (2).
    """

    class Flags(config_type):
        __doc__ = f"{cleandoc(config_type.__doc__ or '')}\n\n{about}"

        def __new__(cls, **values: object) -> dict[str, object]:
            return values  # the config is built below: errors in here, tyro would put in a box of its own

    markers = (tyro.conf.EnumChoicesFromValues, tyro.conf.HelptextFromCommentsOff, tyro.conf.DisallowNone)
    values: Any = tyro.cli(Flags, args=arguments, config=markers)  # Any: what __new__ gives, not a Flags
    return config_type(**values)


def named_mode(modes: Collection[str], default: str, arguments: Sequence[str] | None = None) -> str:
    """Find out which ``--mode`` is asked for, since each has flags of its own.

    Args:
        modes: those that there are.
        default: the one that is meant where none is named.
        arguments: what to look at; None takes ``sys.argv``.

    Raises:
        ConfigError: there is no such mode.

    Example:
        >>> named_mode(["train", "pretrain"], "train", ["--seed", "3", "--mode=pretrain"])
        'pretrain'
    """
    named = flag_value("mode", arguments)
    mode = default if named is None else named
    if mode not in modes:
        raise ConfigError(f"unknown mode {mode!r}: choose from {', '.join(modes)}")
    return mode


def flag_value(name: str, arguments: Sequence[str] | None = None) -> str | None:
    """Look up a flag before the others are read, since they depend on it; None where it is not given.

    Args:
        name: of the flag, without its dashes.
        arguments: what to look at; None takes ``sys.argv``.

    Example:
        >>> flag_value("backend", ["--seed", "3", "--backend", "arbor"]), flag_value("mode", ["--seed", "3"])
        ('arbor', None)
    """
    given = sys.argv[1:] if arguments is None else arguments
    found = None
    for place, argument in enumerate(given):
        if argument == f"--{name}":
            found = given[place + 1] if place + 1 < len(given) else ""
        elif argument.startswith(f"--{name}="):
            found = argument.removeprefix(f"--{name}=")
    return found


def exit_status(run: Callable[[], None]) -> int:
    """Run something; a deliberate error becomes one line on stderr and an exit status.

    Anything else is a bug, and keeps its traceback.
    """
    try:
        _run_to_the_last_word(run)
    except (MemoryProgramError, BenchmarkError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _is_unheard():
            return UNHEARD
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return BAD_INPUT if isinstance(error, _NOTHING_STARTED) else FAILED
    except KeyboardInterrupt:
        print("interrupted: what is done is kept, and the same command goes on from there", file=sys.stderr)
        return INTERRUPTED
    return 0


def _run_to_the_last_word(run: Callable[[], None]) -> None:
    """Run something; a reader of its output that has gone shows here, and not when Python ends."""
    try:
        run()
    except SystemExit:  # after help
        sys.stdout.flush()
        raise
    sys.stdout.flush()


def _is_unheard() -> bool:
    """Whether nobody reads standard output any more (``| head``); what is left of it is dropped then."""
    polled = select.poll()
    polled.register(sys.stdout, select.POLLOUT)
    if not any(events & (select.POLLERR | select.POLLHUP) for _, events in polled.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True
