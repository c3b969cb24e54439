"""Flags made from a config, settings from a file, and errors as one line and an exit status."""

import io
import json
import logging
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import redirect_stderr
from copy import copy
from functools import partial
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from pydantic import BaseModel, Field, create_model

import locomo.exit_status
from locomo.benchmark_errors import BenchmarkError
from memory_program.core.errors import ConfigError, MemoryProgramError, ModelError, RecordError
from memory_program.core.old_flags import hint_for_flag
from memory_program.core.redaction import redact_text
from memory_program.core.settings import Settings, SettingsGroup, rename_old_settings, with_default

_ERRORS_BEFORE_START = (ConfigError, BenchmarkError, ModelError, RecordError, FileNotFoundError)

_CONFIG_HELP = (
    "Read settings from this file: YAML, or the config.json of a run. Flags on the command line override it."
)

_NO_DEFAULT = tyro.conf.arg(help_behavior_hint="")
"""Marks a flag whose help shows no ``(default: None)``."""

_VERBOSE_HELP = (
    "Print a line on stderr for each session that is written and each question that is answered: the "
    "namespace, and counts of calls, memories and tokens. Nothing that was said is printed."
)

_KEY_AMONG_FLAGS = (
    "the flags cannot be read, and one of them holds a key, so they are not shown: keys come from the "
    "environment only (OPENAI_API_KEY, or the variable of your provider)"
)

ConfigT = TypeVar("ConfigT", bound=Settings)


class _Unchecked(BaseModel):
    """Values as they are: the config checks them, since tyro would put its errors in a box of its own."""

    def __new__(cls, **values: object) -> dict[str, object]:
        return values


def parse_flags(
    config_type: type[ConfigT],
    arguments: Sequence[str] | None = None,
    *,
    about: str = "",
    prog: str | None = None,
) -> ConfigT:
    """Build a config from the command line; help comes from the docstrings of its fields.

    Flags go before what ``--config FILE`` says, and that goes before the defaults. Names of version 0.1 are
    accepted in both.

    Args:
        config_type: the config to build.
        arguments: the command line; None takes ``sys.argv``.
        about: text of the help after the docstring of the config.
        prog: name of the command in its help; None takes the name of the script.

    Raises:
        ConfigError: a flag is unknown, a setting is out of range or contradicts another one, or the file
            cannot be used.
        SystemExit: help was asked for (0), or the value of a flag is missing or of another type (2).
    """
    known = config_type.flat_fields()
    given = _rename_old_flags(sys.argv[1:] if arguments is None else arguments, known)
    path = peek_flag("config", given)
    saved = _check_file(config_type, Path(path)) if path is not None else {}
    for name, (decisive, choices) in config_type.flat_conditions().items():
        chosen = peek_flag(decisive.replace("_", "-"), given)
        if (
            chosen is not None and chosen not in choices
        ):  # the flag wins over what belongs to the file's choice
            saved.pop(name, None)
    doc = f"{cleandoc(config_type.__doc__ or '')}\n\n{about}"
    flags = _flags_model(config_type, saved, doc, is_root=True)
    markers = (
        tyro.conf.EnumChoicesFromValues,
        tyro.conf.HelptextFromCommentsOff,
        tyro.conf.DisallowNone,
        tyro.conf.OmitArgPrefixes,
    )
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            values: Any  # nested dicts of values
            values, unknown = tyro.cli(flags, args=given, config=markers, prog=prog, return_unknown_args=True)
    except SystemExit:
        if any(redact_text(argument) != argument for argument in given):  # a box breaks a key over lines
            raise ConfigError(_KEY_AMONG_FLAGS) from None
        sys.stderr.write(complaint.getvalue())
        raise
    if unknown:  # a value is never named: it may be a key
        flag = next((argument.partition("=")[0] for argument in unknown if argument.startswith("--")), None)
        if flag is None:
            shown = redact_text(unknown[0])
            raise ConfigError(f"unexpected argument {shown!r}: settings are given as --name value")
        names = [name.replace("_", "-") for name in known]
        hint = hint_for_flag(flag.removeprefix("--").replace("_", "-"), names)
        raise ConfigError(f"unknown flag {redact_text(flag)}: {hint}")
    del values["config"]
    is_verbose = values.pop("verbose")
    config = config_type(**_flatten(values))
    if is_verbose:  # what the package logs at level INFO, on stderr
        logger, handler = logging.getLogger("memory_program"), logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    return config


def parse_mode(modes: Collection[str], default: str, arguments: Sequence[str] | None = None) -> str:
    """Find the ``--mode`` that is asked for, since each has its own flags.

    Args:
        modes: the modes to choose from.
        default: the mode without a flag.
        arguments: the command line; None takes ``sys.argv``.

    Raises:
        ConfigError: there is no such mode.

    Example:
        >>> parse_mode(["train", "export"], "train", ["--seed", "3", "--mode=export"])
        'export'
    """
    named = peek_setting("mode", arguments)
    mode = default if named is None else named
    if mode not in modes:
        raise ConfigError(f"unknown mode {mode!r}: choose from {', '.join(modes)}")
    return mode


def peek_setting(name: str, arguments: Sequence[str] | None = None) -> str | None:
    """Look up a setting on which the flags depend: on the command line, or else in the ``--config`` file.

    Raises:
        ConfigError: the file cannot be used.
    """
    path = peek_flag("config", arguments)
    found = peek_flag(name, arguments)
    if found is None and path is not None:
        found = read_settings_file(Path(path)).get(name)
    return None if found is None else str(found)


def peek_flag(name: str, arguments: Sequence[str] | None = None) -> str | None:
    """Look up a flag before the others are parsed; None where it is not given.

    Args:
        name: of the flag, without its dashes.
        arguments: the command line; None takes ``sys.argv``.

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


def read_settings_file(path: Path) -> dict[str, Any]:  # Any: JSON or YAML values
    """Read settings by name from YAML, or from the ``config.json`` of a run.

    Raises:
        ConfigError: the file cannot be read, or does not hold settings by name.
    """
    import yaml  # most commands read no file

    try:
        text = Path(os.path.expanduser(path)).read_text(encoding="utf-8-sig")
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {str(path)!r} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"--config {str(path)!r} holds {content!r:.80}: expected settings, such as top_k: 5"
        )
    return {str(name).replace("-", "_"): value for name, value in content.items()}


run_script = partial(
    locomo.exit_status.run_with_exit_status,
    deliberate=(MemoryProgramError, BenchmarkError, OSError),
    nothing_started=_ERRORS_BEFORE_START,
    interrupted="interrupted: finished work is kept, and the same command continues from there",
    redact=redact_text,
)
"""Run a function; a deliberate error becomes one line on stderr and an exit status.

Any other exception is a bug, and keeps its traceback.
"""


def _rename_old_flags(arguments: Sequence[str], known: Collection[str]) -> list[str]:
    """Replace the flags and choices of version 0.1 by those of today."""
    renamed: list[str] = []
    last = ""  # the flag before a value
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if not flag.startswith("--"):
            renamed += rename_old_settings({last: argument}, known).values()
            continue
        negation = "no-" if flag.startswith("--no-") else ""
        name = flag.removeprefix(f"--{negation}").replace("-", "_")
        ((last, value),) = rename_old_settings({name: value}, known).items()
        renamed.append(f"--{negation}{last.replace('_', '-')}{equals}{value}")
    return renamed


def _check_file(config_type: type[Settings], path: Path) -> dict[str, object]:
    """Read a file of settings, and check each of them alone: together with flags, they are a config."""
    settings = read_settings_file(path)
    known = config_type.flat_fields()
    try:
        given = rename_old_settings(settings, known)
    except ConfigError as error:
        raise ConfigError(f"--config {str(path)!r}: {error}") from error
    unknown = [name for name in given if name not in known]
    if len(unknown) > 3:  # a file of another command: one error would list all settings for each of them
        raise ConfigError(
            f"--config {str(path)!r} has {len(unknown)} settings that this command lacks "
            f"({', '.join(unknown[:3])}, ...): name a file of this command and mode, as the config.json of "
            "one of its runs"
        )
    fields: Any = {  # Any: pydantic's way to name fields
        name: (field.annotation, copy(field))
        for name, field in known.items()
        if name in given or not field.is_required()
    }
    try:
        checked = create_model(config_type.__name__, __base__=Settings, **fields)(**given)
    except ConfigError as error:
        raise ConfigError(f"--config {str(path)!r}: {error}") from error
    return {name: getattr(checked, name) for name in given}


def _flags_model(
    settings: type[Settings], defaults: Mapping[str, object], doc: str, *, is_root: bool = False
) -> type[BaseModel]:
    """Make the nested model that tyro turns into flags; a group of settings is a group in the help."""
    fields: Any = {}  # Any: pydantic's way to name fields
    if is_root:
        fields["config"] = (
            Annotated[Path | None, _NO_DEFAULT],
            Field(default=None, description=_CONFIG_HELP),
        )
        fields["verbose"] = (bool, Field(default=False, description=_VERBOSE_HELP))
    for name, field in settings.model_fields.items():
        if isinstance(field.default, SettingsGroup):
            group = type(field.default)
            inner = {**field.default.flat_values(), **defaults}
            about = cleandoc(group.__doc__ or "")
            # the description keeps tyro from parsing source files, which takes longer than all the rest
            fields[name] = (_flags_model(group, inner, about), Field(description=about))
        else:
            shown = with_default(field, defaults.get(name, field.default))
            is_unset = shown.default in (None, "", ())  # the description says what happens then
            hints = [_NO_DEFAULT] if is_unset else []
            markers = [*field.metadata, *hints]
            annotation = Annotated[field.annotation, *markers] if markers else field.annotation
            fields[name] = (annotation, shown)
    return create_model(settings.__name__, __base__=_Unchecked, __doc__=doc, **fields)


def _flatten(values: Mapping[str, object]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in values.items():
        flat |= _flatten(value) if isinstance(value, dict) else {name: value}
    return flat
