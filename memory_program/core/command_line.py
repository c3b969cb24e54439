"""What the scripts share: flags made from a config, and errors as one line and an exit status."""

import sys
from collections.abc import Collection, Sequence
from functools import partial
from inspect import cleandoc
from typing import Any, TypeVar

import tyro

import locomo.exit_status
from locomo.errors import BenchmarkError
from memory_program.core.errors import ConfigError, MemoryProgramError, ModelError, RecordError
from memory_program.core.settings import Settings

_ERRORS_BEFORE_START = (ConfigError, BenchmarkError, ModelError, RecordError, FileNotFoundError)

ConfigT = TypeVar("ConfigT", bound=Settings)


def parse_flags(
    config_type: type[ConfigT],
    arguments: Sequence[str] | None = None,
    *,
    about: str = "",
    prog: str | None = None,
) -> ConfigT:
    """Build a config from the command line; help comes from the docstrings of its fields.

    Args:
        config_type: the config to build.
        arguments: what to parse; None takes ``sys.argv``.
        about: what help says of the script, after the docstring of the config.
        prog: what the command is called in its help; without it, by the name of the script.

    Raises:
        ConfigError: a setting is out of range, or contradicts another one.
        SystemExit: help was asked for (0), or a flag is unknown or of another type (2).
    """

    class Flags(config_type):
        __doc__ = f"{cleandoc(config_type.__doc__ or '')}\n\n{about}"

        def __new__(cls, **values: object) -> dict[str, object]:
            return values  # the config is built below: errors in here, tyro would put in a box of its own

    markers = (tyro.conf.EnumChoicesFromValues, tyro.conf.HelptextFromCommentsOff, tyro.conf.DisallowNone)
    # Any: what __new__ gives, not a Flags
    values: Any = tyro.cli(Flags, args=arguments, config=markers, prog=prog)
    return config_type(**values)


def parse_mode(modes: Collection[str], default: str, arguments: Sequence[str] | None = None) -> str:
    """Find out which ``--mode`` is asked for, since each has flags of its own.

    Args:
        modes: those that there are.
        default: the one that is meant where none is named.
        arguments: what to look at; None takes ``sys.argv``.

    Raises:
        ConfigError: there is no such mode.

    Example:
        >>> parse_mode(["train", "pretrain"], "train", ["--seed", "3", "--mode=pretrain"])
        'pretrain'
    """
    named = peek_flag("mode", arguments)
    mode = default if named is None else named
    if mode not in modes:
        raise ConfigError(f"unknown mode {mode!r}: choose from {', '.join(modes)}")
    return mode


def peek_flag(name: str, arguments: Sequence[str] | None = None) -> str | None:
    """Look up a flag before the others are read, since they depend on it; None where it is not given.

    Args:
        name: of the flag, without its dashes.
        arguments: what to look at; None takes ``sys.argv``.

    Example:
        >>> peek_flag("backend", ["--seed", "3", "--backend", "arbor"]), peek_flag("mode", ["--seed", "3"])
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


run_script = partial(
    locomo.exit_status.run_with_exit_status,
    deliberate=(MemoryProgramError, BenchmarkError, OSError),
    nothing_started=_ERRORS_BEFORE_START,
    interrupted="interrupted: what is done is kept, and the same command goes on from there",
)
"""Run a function; a deliberate error becomes one line on stderr and an exit status.

Any other exception is a bug, and keeps its traceback.
"""
