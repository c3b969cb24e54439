"""Settings that are checked when they are built, with errors that say what was expected."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    SerializationInfo,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from memory_program.core.errors import ConfigError

OLD_NAMES = {
    "archive": "with_verbatim_turns",
    "entropy": "entropy_weight",
    "is_scaled": "scale_rewards",
    "max_turns": "writer_max_turns",
    "metric": "answer_metric",
    "num_threads": "concurrency",
    "page": "report_file",
    "relevance_floor": "min_relative_score",
    "review_questions": "replay_questions",
    "reward": "answer_metric",
    "rollouts": "group_size",
    "worlds": "num_worlds",
}
"""Names that settings had in version 0.1. Flags, files and recorded settings may still use them."""

ValueT = TypeVar("ValueT")

_OLD_VALUES = {"reward_rule": {"difference": "leave-one-out"}}

_PASSWORD = re.compile(
    r"^[^:/]+://[^:/]*:[^@]*@"  # as SQLAlchemy reads it: a password may have slashes
    r"|^https?://[^/?#]*@"  # a name alone may be a token
    r"|^[^:/?#@]+:[^/?#@]+@"  # without its https://
    r"|[?&][^=&]*password[^=&]*=",
    re.IGNORECASE,
)
_KEY = re.compile(r"[?&#]([^=&]*(key|token|secret|credential|signature)[^=&]*|sig)=", re.IGNORECASE)


DATABASE_PASSWORD_SOURCE = "PGPASSWORD or ~/.pgpass"
"""The places from which the password of a database is read."""

_MLFLOW_PASSWORD_SOURCE = (
    "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or that of a database in PGPASSWORD"
)


def reject_password(name: str, instead: str, value: str) -> str:
    """Refuse an address with a password: records, reports and process lists would show it.

    Raises:
        ConfigError: it has a password.
    """
    if _PASSWORD.search(value):
        raise ConfigError(
            f"{name} holds a password, which records and process lists would show: leave it out, and "
            f"set it in {instead}"
        )
    return value


DatabaseUrl = Annotated[str, AfterValidator(partial(reject_password, "db_url", DATABASE_PASSWORD_SOURCE))]
"""The URL of the database of the banks, without a password."""

TrackingUri = Annotated[
    str, AfterValidator(partial(reject_password, "tracking_uri", _MLFLOW_PASSWORD_SOURCE))
]
"""MLflow's tracking address, without a password."""


def holds_secret(address: str) -> bool:
    """Tell if the address of a server has a password or a key in it."""
    return _PASSWORD.search(address) is not None or _KEY.search(address) is not None


def is_server_address(value: str) -> bool:
    """Tell if a value is the address of an HTTP server, with a valid port."""
    try:
        address = urlsplit(value)
        has_host = bool(address.hostname) and address.port != 0
    except ValueError:  # brackets or a port that cannot be read
        return False
    return has_host and address.scheme in ("http", "https") and not re.search(r"\s", value)


def _check_api_base(value: str, setting: ValidationInfo) -> str:
    name = str(setting.field_name)
    if holds_secret(value):
        reject_password(name, "the environment variable of the API key", value)
        raise ConfigError(
            f"{name} holds a key, which records and process lists would show: leave it out, and set it in "
            "the environment variable of the API key, such as OPENAI_API_KEY"
        )
    if not is_server_address(value):
        raise ConfigError(
            f"--{name.replace('_', '-')} {value!r} is not an address: one looks like "
            "'http://127.0.0.1:8000/v1'"
        )
    return value


ApiBase = Annotated[str, AfterValidator(_check_api_base)]
"""The address of a server with models, without a password."""


class Settings(BaseModel):
    """Settings that are checked when they are built, and cannot change afterwards.

    A field may hold a ``SettingsGroup``. Outside, its settings look like fields of these settings: the
    constructor takes them by name, ``model_dump`` writes them side by side, and ``flat_fields`` lists them.

    Raises:
        ConfigError: a setting is unknown, of another type or out of range; the message names the choices.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # the input may hold a password; our own errors name the rest
    )

    only_with: ClassVar[Mapping[str, tuple[str, tuple[str, ...]]]] = {}
    """Settings that apply to some choices of another setting only: its name, and those choices."""

    def __init_subclass__(cls, *, init: bool = False) -> None:
        """Take ``init=False``, which tells a type checker that the constructor below is that of the class."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: object) -> None:
        """Take the line breaks out of the descriptions: whoever shows them wraps them anew."""
        for field in cls.model_fields.values():
            field.description = " ".join((field.description or "").split())

    def __init__(self, **values: object) -> None:
        """Check the values, and put those of groups into their groups."""
        problems: list[str] = []
        given = rename_old_settings(values, type(self).flat_fields())
        for name, field in type(self).model_fields.items():
            group = given.get(name, field.default)
            if isinstance(group, SettingsGroup):
                changes = {key: given.pop(key) for key in type(group).flat_fields() if key in given}
                try:
                    given[name] = group.replace(**changes) if changes else group
                except ConfigError as error:
                    problems.append(str(error))
        try:
            super().__init__(**given)
        except ValidationError as error:
            of_fields = [problem for problem in error.errors() if problem["loc"] or not problems]
            problems += [_format_problem(dict(problem), type(self)) for problem in of_fields]
        if problems:
            raise ConfigError("; ".join(problems))

    @classmethod
    def flat_fields(cls) -> dict[str, FieldInfo]:
        """List all settings, those of groups included, with the defaults that they have here."""
        flat: dict[str, FieldInfo] = {}
        for name, field in cls.model_fields.items():
            if not isinstance(field.default, SettingsGroup):
                flat[name] = field
                continue
            defaults = field.default.flat_values()
            for inner, of_group in type(field.default).flat_fields().items():
                flat[inner] = with_default(of_group, defaults[inner])
        return flat

    @classmethod
    def flat_conditions(cls) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Return ``only_with`` with those of groups included."""
        conditions = dict(cls.only_with)
        for field in cls.model_fields.values():
            if isinstance(field.default, SettingsGroup):
                conditions |= type(field.default).flat_conditions()
        return conditions

    def flat_values(self) -> dict[str, Any]:  # Any: the values of settings
        """Give all settings by name, those of groups included."""
        values: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            values |= value.flat_values() if isinstance(value, SettingsGroup) else {name: value}
        return values

    def replace(self, **changes: object) -> Self:
        """Build the same settings with some changed.

        Raises:
            ConfigError: as the constructor does.
        """
        return type(self)(**{**self.flat_values(), **rename_old_settings(changes, type(self).flat_fields())})

    @model_serializer(mode="plain")
    def _write_flat(self, info: SerializationInfo) -> dict[str, Any]:  # Any: JSON values
        values = {
            name: value
            for name, value in self.flat_values().items()
            if (info.include is None or name in info.include) and name not in (info.exclude or ())
        }
        return to_jsonable_python(values) if info.mode == "json" else values

    @field_validator("*")
    @classmethod
    def _expand_home(cls, value: object) -> object:
        """Resolve ``~``, as the shell does for a flag, but not in a file or in ``--output-dir=~/runs``."""
        if isinstance(value, tuple):
            return tuple(cls._expand_home(element) for element in value)
        return Path(os.path.expanduser(value)) if isinstance(value, Path) else value

    @model_validator(mode="after")
    def _check_model_names(self) -> Self:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name.endswith("model") and isinstance(value, str) and not value.strip():
                raise ConfigError(f"{name}={value!r} names no model: name one, or leave it out")
        return self


class SettingsGroup(Settings, init=False):
    """Settings that belong together, and that several commands have."""


def with_default(field: FieldInfo, default: object) -> FieldInfo:
    """Copy a field with another default. A value replaces the "Default: ..." of a description."""
    changed = copy(field)
    changed.default = default
    if field.default is None and default is not None:
        changed.description = (field.description or "").partition(" Default: ")[0]
    return changed


def filled_in(value: ValueT | None) -> ValueT:
    """Return a setting whose default depends on the model, and has been filled in."""
    assert value is not None, "its default is filled in before it is used"
    return value


def rename_old_settings(
    values: Mapping[str, object], known: Collection[str]
) -> dict[str, Any]:  # Any: the values of settings
    """Give settings of version 0.1 the names and values that they have today.

    Args:
        values: settings by name.
        known: the names of today; what is among them is never renamed.

    Raises:
        ConfigError: a setting is given under both names.
    """
    renamed: dict[str, Any] = {}
    for old, value in values.items():
        name = OLD_NAMES[old] if old not in known and OLD_NAMES.get(old) in known else old
        if name != old and name in values:
            raise ConfigError(f"{old} is the old name of {name}, and both are given: leave {old} out")
        choices = _OLD_VALUES.get(name, {})
        renamed[name] = choices.get(value, value) if isinstance(value, str) else value
    return renamed


def check_output_file(path: Path, name: str) -> Path:
    """Check the path of a result before the work begins.

    Raises:
        ConfigError: it is a folder, or cannot be written.
    """
    if path.is_dir():
        raise ConfigError(f"{name}={path.as_posix()!r} is a folder: name a file")
    there = next(parent for parent in path.absolute().parents if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        what = "is read-only" if there.is_dir() else "is a file"
        raise ConfigError(
            f"{name}={path.as_posix()!r} cannot be written: {there.as_posix()!r} {what}; name another one"
        )
    return path


OutputFile = Annotated[
    Path, AfterValidator(lambda path, setting: check_output_file(path, str(setting.field_name)))
]
"""The type of a setting that names a file to write."""


def split_list(value: str) -> list[str]:
    """Split a comma-separated setting, without the spaces around its parts.

    Example:
        >>> split_list("memory, rag")
        ['memory', 'rag']
    """
    return [part.strip() for part in value.split(",") if part.strip()]


def check_choices(value: str, what: str, choices: Sequence[str]) -> str:
    """Check a comma-separated choice, and return it without spaces.

    Raises:
        ConfigError: it is empty, or holds an unknown name or one name twice.
    """
    names = split_list(value)
    offered = f"choose from {', '.join(choices)}"
    if not names:
        raise ConfigError(f"{what}s={value!r} names none: {offered}")
    for name in names:
        if name not in choices:
            raise ConfigError(f"unknown {what} {name!r}: {offered}")
        if names.count(name) > 1:
            raise ConfigError(f"{what}s={value!r} names {name!r} twice: name each once")
    return ",".join(names)


_BOUNDS = {
    "greater_than_equal": ("ge", "must be at least"),
    "greater_than": ("gt", "must be more than"),
    "less_than_equal": ("le", "must be at most"),
}


def _format_problem(
    problem: Mapping[str, Any], settings: type[Settings]
) -> str:  # Any: pydantic's error details
    """Write a problem that pydantic found as an error message of this project."""
    name, value = ".".join(str(part) for part in problem["loc"]), problem["input"]
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    if kind == "extra_forbidden":
        return f"unknown setting {name!r}: choose from {', '.join(settings.flat_fields())}"
    if kind in _BOUNDS:
        limit, words = _BOUNDS[kind]
        return f"{name}={value!r} {words} {context[limit]}"
    if "expected" in context:  # a Literal or an enum
        choices = str(context["expected"]).replace("'", "").replace(" or ", ", ")
        return f"unknown {name} {value!r}: choose from {choices}"
    return f"{name}={value!r} is not allowed: {problem['msg'][0].lower()}{problem['msg'][1:]}"
