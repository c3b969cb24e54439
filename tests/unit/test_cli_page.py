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


def write_flags(config: type[Settings]) -> Iterator[str]:
    """List the flags of a config, group by group."""
    yield from paragraphs(cleandoc(config.__doc__ or ""))
    own = {name: f for name, f in config.model_fields.items() if not isinstance(f.default, SettingsGroup)}
    yield from (write_flag(name, field) for name, field in own.items())
    yield from write_groups(config, config.flat_fields())


def write_groups(config: type[Settings], flat: dict[str, FieldInfo]) -> Iterator[str]:
    """List the flags of the groups of a config, under its own defaults."""
    for field in config.model_fields.values():
        if isinstance(field.default, SettingsGroup):
            group = type(field.default)
            names = [n for n, f in group.model_fields.items() if not isinstance(f.default, SettingsGroup)]
            if names:
                yield f"\n**{cleandoc(group.__doc__ or '')}**\n"
                yield from (write_flag(name, flat[name]) for name in names)
            yield from write_groups(group, flat)


def write_flag(name: str, field: FieldInfo) -> str:
    default = getattr(field.default, "value", field.default)
    shown = "" if default in (None, "", ()) or field.is_required() else f" (default `{default}`)"
    if field.annotation is bool:
        shown = f" (default {'on' if default else 'off'})"
    flag = {"runs": "RUN ...", "files": "FILE ..."}.get(name) or f"--{name.replace('_', '-')}"
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
    page = [HEAD, "## memory-program evaluate\n", *write_flags(EvaluateConfig)]
    page += ["\n## memory-program score\n", *write_flags(ScoreConfig)]
    page += ["\n## memory-program optimize\n", *write_flags(OptimizeConfig)]
    for mode in TRAIN_MODES:
        config = train_mode_config(mode, ["--backend", "local"])
        page += [f"\n## memory-program train --mode {mode}\n", *write_flags(config)]
        if mode == "train":
            page += ["\n## memory-program train --backend arbor\n", *write_flags(ArborTrainConfig)]
    page += ["\n## memory-program serve\n", *write_flags(ServeConfig)]
    page += ["\n## memory-program reward-server\n", *write_flags(RewardServerConfig)]
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
