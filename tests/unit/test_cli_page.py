"""``docs/cli.md`` lists every command and flag; ``UPDATE_GOLDEN=1`` writes it."""

import contextlib
import io
import os
import re
import textwrap
from collections.abc import Iterator
from inspect import cleandoc

import pytest
from pydantic.fields import FieldInfo

from memory_program.cli import TRAIN_MODES, main, train_mode_config
from memory_program.configs.arbor_config import ArborTrainConfig
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.configs.score_config import ScoreConfig
from memory_program.configs.serve_config import ServeConfig
from memory_program.core.settings import Settings, SettingsGroup
from memory_program.serving.reward_server import RewardServerConfig
from tests.conftest import CHECKOUT

PAGE = CHECKOUT / "docs" / "cli.md"
HEAD = """\
# Commands and flags

This page is generated: `UPDATE_GOLDEN=1 python -m pytest tests/unit/test_cli_page.py` writes it.

`pip install` gives one command, `memory-program`. In a checkout `python evaluate.py`, `python optimize.py`
and `python train.py` do the same as its subcommands of these names.

`evaluate`, `score`, `optimize`, `train`, `serve` and `reward-server` also take `--config FILE`: a YAML
file of settings, or the `config.json` of a run. Flags on the command line override the file. They also take
`--verbose`, which logs progress to stderr.

Commands share groups of flags. A flag that is the same as in a section above is only named.
"""
OTHERS = ("bank list", "bank search", "bank history", "bank diff", "bank undo", "bank forget", "bank export")
OTHERS += (
    "bank import",
    "rollouts",
    "world",
    "forget",
    "arbor serve",
    "arbor status",
    "arbor stop",
    "token create",
    "token list",
    "token revoke",
    "split-data",
)


def write_command(command: str, config: type[Settings], shown: dict[str, str]) -> Iterator[str]:
    """List the flags of a command, group by group. ``shown`` has the command of each flag further up."""
    yield f"\n## memory-program {command}\n"
    yield from paragraphs(cleandoc(config.__doc__ or ""))
    own = {name: f for name, f in config.model_fields.items() if not isinstance(f.default, SettingsGroup)}
    yield from write_new_flags(command, own, shown)
    yield from write_groups(command, config, config.flat_fields(), shown)


def write_new_flags(command: str, fields: dict[str, FieldInfo], shown: dict[str, str]) -> Iterator[str]:
    """Describe flags, and name those that are described further up."""
    above: dict[str, list[str]] = {}
    for name, field in fields.items():
        text = write_flag(name, field)
        first = shown.setdefault(text, command)
        if first == command:
            yield text
        else:
            above.setdefault(first, []).append(f"`{flag_name(name)}`")
    for first, flags in above.items():
        text = f"- As in [{first}](#memory-program-{first.replace(' ', '-')}): {', '.join(flags)}"
        yield textwrap.fill(text, 108, subsequent_indent="  ", break_on_hyphens=False)


def write_groups(
    command: str, config: type[Settings], flat: dict[str, FieldInfo], shown: dict[str, str]
) -> Iterator[str]:
    """List the flags of the groups of a config, under its own defaults."""
    for field in config.model_fields.values():
        if isinstance(field.default, SettingsGroup):
            group = type(field.default)
            names = [n for n, f in group.model_fields.items() if not isinstance(f.default, SettingsGroup)]
            if names:
                yield f"\n**{cleandoc(group.__doc__ or '')}**\n"
            yield from write_new_flags(command, {name: flat[name] for name in names}, shown)
            yield from write_groups(command, group, flat, shown)


def flag_name(name: str) -> str:
    return {"runs": "RUN ...", "files": "FILE ..."}.get(name) or f"--{name.replace('_', '-')}"


def write_flag(name: str, field: FieldInfo) -> str:
    default = getattr(field.default, "value", field.default)
    shown = "" if default in (None, "", ()) or field.is_required() else f" (default `{default}`)"
    if field.annotation is bool:
        shown = f" (default {'on' if default else 'off'})"
    flag = flag_name(name)
    if default is True:
        flag += f"`, `--no-{name.replace('_', '-')}"
    others = [alias for part in field.metadata for alias in getattr(part, "aliases", None) or ()]
    also = f", also {', '.join(f'`{other}`' for other in others)}" if others else ""
    text = f"- `{flag}`{also}{shown}: {field.description}"
    return textwrap.fill(text, 108, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def paragraphs(text: str) -> list[str]:
    return [f"{textwrap.fill(part, 108, break_on_hyphens=False)}\n" for part in text.split("\n\n")]


def test_the_page_of_commands_is_up_to_date(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shown: dict[str, str] = {}
    page = [HEAD.rstrip("\n")]
    for command, config in (
        ("evaluate", EvaluateConfig),
        ("score", ScoreConfig),
        ("optimize", OptimizeConfig),
    ):
        page += write_command(command, config, shown)
    for mode in TRAIN_MODES:
        config = train_mode_config(mode, ["--backend", "local"])
        page += write_command(f"train --mode {mode}", config, shown)
        if mode == "train":
            page += write_command("train --backend arbor", ArborTrainConfig, shown)
    page += write_command("serve", ServeConfig, shown)
    page += write_command("reward-server", RewardServerConfig, shown)
    for command in OTHERS:
        printed = io.StringIO()  # without an encoding: the same letters everywhere
        with pytest.raises(SystemExit), contextlib.redirect_stdout(printed):
            main([*command.split(), "--help"])
        lines = printed.getvalue().strip().splitlines()
        shown = "\n".join(textwrap.fill(line.rstrip(), 108, break_on_hyphens=False) for line in lines)
        page += [f"\n## memory-program {command}\n", f"```\n{shown}\n```"]
    text = "\n".join(page) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text
    assert max(map(len, text.splitlines())) <= 110
    assert not re.search(r"(?<!`)``(?!`)|python -m memory_program", text), (
        "a help quotes a docstring of the code"
    )


def test_no_help_shows_an_empty_default():
    page = PAGE.read_text(encoding="utf-8")
    assert [line for line in page.splitlines() if "default: None" in line or "default: ''" in line] == []
