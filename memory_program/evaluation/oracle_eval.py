"""The upper bound of a score: the same program with the oracle as its model."""

from memory_program.configs.evaluate_config import EvaluateConfig, Mode, SystemName
from memory_program.core.json_files import Json
from memory_program.evaluation.datasets import load_worlds
from memory_program.evaluation.role_models import ModelFactory
from memory_program.worlds.oracle import oracle_lm

ORACLE = "oracle"
"""Stands in signatures where a model's name does."""


def oracle_run(config: EvaluateConfig) -> tuple[EvaluateConfig, ModelFactory] | None:
    """Return the config of a run whose memory system has the oracle as writer and reader, and its models.

    It has the settings of ``config`` and a folder of its own inside that run's folder, so that recorded
    results of the oracle are used again. None if the truth of the dataset is unknown, or if the run computes
    no scores of the memory system.
    """
    is_scored = config.mode in (Mode.FULL, Mode.REPORT) and SystemName.MEMORY in config.system_names
    if not is_scored or config.runs:  # each of these runs has its own on record
        return None
    worlds = load_worlds(config.source, config.seed)
    if not worlds:
        return None
    search = config.search
    changed: Json = {
        "systems": SystemName.MEMORY.value,
        "model": None,
        "writer_model": ORACLE,
        "reader_model": ORACLE,
        "judge_model": None,
        "judge_program": None,
        "api_base": None,
        "writer_api_base": None,
        "reader_api_base": None,
        "judge_api_base": None,
        "embedder_api_base": search.embedder and (search.embedder_api_base or config.api_base),
        "temperature": 0.0,
        "program": None,  # its instructions and demos are a model's, and no prompt that the oracle knows
        "reply_format": None,  # it speaks chat
        "chat_template_kwargs": "",
        "output_dir": config.output_dir / "ceiling",
        "report_file": None,
        "db_url": None,
        "executor": "threads",  # the oracle is in this process
        "batch": False,
        "max_cost": None,
        "max_errors": None,
        "mlflow": False,
        "traces": False,
    }
    return config.replace(**changed), lambda _name, _temperature: oracle_lm(worlds)
