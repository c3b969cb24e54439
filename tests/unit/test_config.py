import traceback
from typing import get_args

import pytest
from pydantic import ValidationError

from locomo.judge.rubrics import Rubric
from locomo.longmemeval import MemBuilderSplit
from locomo.splits import SplitOrAll
from memory_program.agents.systems import SYSTEMS
from memory_program.configs.evaluate_config import EvaluateConfig, SystemName
from memory_program.configs.groups import SystemSettings
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.configs.serve_config import ServeConfig
from memory_program.configs.train_config import TrainConfig
from memory_program.core.errors import ConfigError
from memory_program.core.settings import split_list

LOCOMO = {"dataset": "locomo"}


@pytest.mark.parametrize(
    ("name", "address", "instead"),
    [
        ("db_url", "postgresql://me:hunter22@host/banks", "PGPASSWORD or ~/.pgpass"),
        ("db_url", "postgresql+psycopg://me:hunter/22@host/banks", "PGPASSWORD or ~/.pgpass"),
        ("db_url", "postgresql://me@host/banks?password=hunter22", "PGPASSWORD or ~/.pgpass"),
        ("tracking_uri", "https://me:hunter22@host", "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
        ("tracking_uri", "https://hunter22@host", "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"),
        ("tracking_uri", "postgresql://me:hunter22@host/mlflow", "of a database in PGPASSWORD"),
        ("api_base", "http://me:hunter22@host/v1", "the environment variable of the API key"),
        ("api_base", "me:hunter22@host/v1", "the environment variable of the API key"),
    ],
)
def test_an_address_with_a_password_is_refused_and_not_shown(name, address, instead):
    for config in (EvaluateConfig, OptimizeConfig, TrainConfig):
        if name in config.flat_fields():
            with pytest.raises(ConfigError, match=f"{name} holds a password, .* {instead}") as caught:
                config(**{name: address})
            assert "hunter" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "query", ["api_key=hunter22", "a=b&key=hunter22", "access-token=hunter22", "sig=hunter22"]
)
def test_a_key_in_the_address_of_a_server_is_refused_and_not_shown(query):
    with pytest.raises(ConfigError, match=r"judge_api_base holds a key, .* leave it out") as caught:
        EvaluateConfig(judge_api_base=f"http://host/v1?{query}")
    assert "hunter" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("address", ["http://[::1/v1", "http://host:80OO/v1", " http://host/v1"])
def test_what_is_no_address_is_refused_by_the_name_of_its_setting(address):
    with pytest.raises(ConfigError, match=r"--api-base .* is not an address: one looks like"):
        EvaluateConfig(api_base=address)


def test_an_address_without_a_password_is_accepted():
    addresses = {
        "db_url": "postgresql://me@host:5432/banks?options=-c%20a%3Db",
        "tracking_uri": "http://host:5000/mlflow",
        "api_base": "http://127.0.0.1:8000/v1",
    }
    config = EvaluateConfig(**addresses)
    assert config.flat_values().items() >= addresses.items()
    assert EvaluateConfig(db_url="sqlite:///C:/runs/a@b.sqlite").db_url == "sqlite:///C:/runs/a@b.sqlite"


def test_by_default_the_embedded_model_runs_on_the_sample_without_a_judge():
    config = EvaluateConfig()
    assert config.source.dataset == "sample"
    assert [name.value for name in config.system_names] == ["memory", "rag", "full-context", "no-memory"]
    assert (config.writer, config.reader, config.judge) == ("pocket", "pocket", None)


@pytest.mark.parametrize("dataset", ["locomo", "longmemeval", "perltqa", __file__])
def test_real_conversations_need_a_named_model(dataset):
    with pytest.raises(ConfigError, match="system 'memory' needs a model: name one with --model"):
        EvaluateConfig(dataset=dataset)
    config = EvaluateConfig(dataset=dataset, systems="extractive")
    assert config.writer is config.reader is config.judge is None


@pytest.mark.parametrize(
    ("systems", "expected"),
    [
        ("memory,rag", ["memory", "optimized", "rag"]),
        ("extractive", ["extractive", "optimized"]),
        ("optimized,memory", ["optimized", "memory"]),
    ],
)
def test_a_saved_program_is_a_system_beside_memory(systems, expected):
    config = EvaluateConfig(systems=systems, program="p.json")
    assert [name.value for name in config.system_names] == expected


def test_weights_beside_a_saved_program_write_for_it_only(tmp_path):
    (tmp_path / "model.safetensors").touch()
    program = tmp_path / "program.json"
    config = EvaluateConfig(systems="memory,rag", program=program, writer_model="pocket-base")
    writers = {name.value: config.writer_model_for(name) for name in config.system_names}
    assert writers == {"memory": "pocket-base", "optimized": f"local:{tmp_path}", "rag": None}
    elsewhere = EvaluateConfig(program=tmp_path / "prompts" / "p.json", writer_model="pocket-base")
    assert elsewhere.writer_model_for(elsewhere.system_names[1]) == "pocket-base"


def test_trained_weights_cannot_be_sent_to_ray(tmp_path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(
        ConfigError, match="runs in the process that calls it, and every process of executor='ray'"
    ):
        EvaluateConfig(
            executor="ray", systems="memory", model="openai/m", program=tmp_path / "program.json", **LOCOMO
        )


def test_a_named_model_replaces_the_embedded_one():
    config = EvaluateConfig(reader_model="openai/m")
    assert (config.writer, config.reader, config.judge) == ("pocket", "openai/m", None)


def test_the_embedded_model_judges_only_if_named_as_judge():
    assert EvaluateConfig(model="pocket-base").judge is None
    assert EvaluateConfig(model="pocket", judge_model="openai/j").judge == "openai/j"
    assert EvaluateConfig(model="openai/m").judge == "openai/m"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 0}, "top_k=0 must be at least 1"),
        ({"top_k": 51}, "top_k=51 must be at most 50"),
        ({"max_cost": 0}, "max_cost=0 must be more than 0"),
        ({"temperature": 2.5}, "temperature=2.5 must be at most 2.0"),
        ({"split": "dev"}, "unknown split 'dev': choose from all, train, val, test, sft, rl"),
        ({"split": "sft"}, "dataset 'sample' has no split 'sft': choose from all, train, val, test"),
        (
            {"dataset": "longmemeval", "split": "val"},
            "dataset 'longmemeval' has no split 'val': choose from all, sft, rl, test",
        ),
        ({"dataset": "perltqa", "split": "test"}, "dataset 'perltqa' has no split 'test': choose from all"),
        ({"mode": "fast"}, "unknown mode 'fast': choose from build, answer, judge, report, full, calibrate"),
        ({"writer_mode": "crowd"}, "unknown writer_mode 'crowd': choose from specialists, generalist"),
        (
            {"systems": "rag,bm52", "model": "m"},
            "unknown system 'bm52': choose from memory, optimized, rag, observations, full-context",
        ),
        ({"systems": "rag,rag", "model": "m"}, "systems='rag,rag' names 'rag' twice: name each once"),
        ({"systems": ","}, "systems=',' names none: choose from"),
        ({"rubrics": "kind"}, "unknown rubric 'kind': choose from lenient, strict"),
        ({"top_n": 3}, "unknown setting 'top_n': choose from runs, mode, dataset,"),
        ({"top_k": "many"}, "top_k='many' is not allowed: input should be a valid integer"),
        ({"systems": "optimized"}, "system 'optimized' needs a saved program: name its file with --program"),
        (
            {"dataset": "own.json", "data": "x.json"},
            "--data only applies to --dataset locomo or longmemeval or perltqa or locomo-plus or personamem",
        ),
        (
            {"num_worlds": 5},
            "--num-worlds only applies to --dataset world (got --dataset sample)",
        ),
        (
            {"dataset": "world", "allow_modified": True},
            "--allow-modified only applies to --dataset locomo (got --dataset world)",
        ),
        ({"num_worlds": 0}, "num_worlds=0 must be at least 1"),
        ({"mode": "judge"}, "mode='judge' needs a judge: name one with --judge-model or --model"),
        (
            {"executor": "ray"},
            "model 'pocket' runs in the process that calls it, and every process of executor='ray'",
        ),
        (
            {"executor": "ray", "model": "openai/m", "reader_model": "local:weights"},
            "model 'local:weights' runs in the process that calls it, and every process of executor='ray'",
        ),
        (
            {"executor": "ray", "model": "openai/m", "build": "two-phase"},
            "build='two-phase' works in one process, and executor='ray' uses several: drop --build",
        ),
        (
            {"executor": "ray", "model": "openai/m", "traces": True},
            "traces=True works in one process, and executor='ray' uses several: drop --traces",
        ),
    ],
)
def test_a_bad_setting_is_refused_with_its_value_and_a_remedy(settings, message):
    with pytest.raises(ConfigError) as caught:
        EvaluateConfig(**settings)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("setting", "limit"), [("grace", "86400"), ("max_megabytes", "100000")])
def test_an_endless_limit_of_a_server_is_refused(setting, limit):
    with pytest.raises(ConfigError, match=f"{setting}=inf must be at most {limit}"):
        ServeConfig(model="openai/m", **{setting: float("inf")})


def test_ray_accepts_a_local_model_that_no_task_calls():
    EvaluateConfig(executor="ray", systems="extractive")
    EvaluateConfig(executor="ray", model="openai/m", writer_model="pocket", systems="rag")
    EvaluateConfig(executor="ray", mode="report")


def test_two_bad_settings_are_both_reported():
    with pytest.raises(ConfigError, match="top_k=0 must be at least 1; seed=-1 must be at least 0"):
        EvaluateConfig(top_k=0, seed=-1)


@pytest.mark.parametrize("systems", ["memory", "rag", "full-context", "no-memory", "extractive,no-memory"])
def test_a_system_that_needs_a_model_says_so(systems):
    with pytest.raises(ConfigError, match="needs a model: name one with --model"):
        EvaluateConfig(systems=systems, **LOCOMO)
    assert EvaluateConfig(systems=systems, model="openai/m", **LOCOMO).reader == "openai/m"


@pytest.mark.parametrize("dataset", ["nosuch.json", "locmo"])
def test_a_dataset_that_is_not_there_is_the_first_error(dataset):
    with pytest.raises(ConfigError, match=f"dataset='{dataset}' is no file here, and no benchmark: choose"):
        EvaluateConfig(dataset=dataset)


def test_a_build_needs_a_writer_for_systems_that_write():
    assert EvaluateConfig(systems="memory", mode="build", writer_model="openai/m", **LOCOMO).reader is None
    assert EvaluateConfig(systems="rag", mode="build", **LOCOMO).writer is None
    with pytest.raises(ConfigError, match="--writer-model"):
        EvaluateConfig(systems="memory", mode="build", reader_model="openai/m", **LOCOMO)


@pytest.mark.parametrize("mode", ["report", "judge"])
def test_recorded_answers_are_judged_and_reported_without_their_models(mode):
    assert EvaluateConfig(systems="memory,rag", mode=mode, judge_model="openai/j", **LOCOMO).reader is None


def test_the_model_of_a_role_overrides_the_model_of_all():
    config = EvaluateConfig(systems="memory", model="openai/a", judge_model="openai/b")
    assert (config.writer, config.reader, config.judge) == ("openai/a", "openai/a", "openai/b")


def test_a_config_cannot_change():
    with pytest.raises(ValidationError, match="frozen"):
        EvaluateConfig().top_k = 3


def test_the_settings_of_a_system_are_flags_of_the_run():
    config = EvaluateConfig(top_k=7, with_verbatim_turns=True)
    assert config.system == SystemSettings(top_k=7, with_verbatim_turns=True)


def test_a_report_file_is_a_file_that_can_be_written(tmp_path):
    with pytest.raises(ConfigError, match=r"report_file='.*' is a folder: name a file"):
        EvaluateConfig(report_file=tmp_path)
    assert EvaluateConfig(report_file=tmp_path / "both.html").report_file == tmp_path / "both.html"
    (tmp_path / "file").touch()
    with pytest.raises(
        ConfigError, match=r"report_file='.*/file/a/b.html' cannot be written: '.*/file' is a file"
    ):
        EvaluateConfig(report_file=tmp_path / "file" / "a" / "b.html")
    new = tmp_path / "new" / "both.html"
    assert EvaluateConfig(report_file=new).report_file == new


@pytest.mark.parametrize("config", [EvaluateConfig, OptimizeConfig, TrainConfig])
def test_a_blank_model_name_is_refused(config):
    with pytest.raises(ConfigError, match="model=' ' names no model: name one, or leave it out"):
        config(model=" ")


def test_a_run_is_reported_once():
    with pytest.raises(ConfigError, match="names one twice"):
        EvaluateConfig(mode="report", runs=("runs/a", "runs/a"))


def test_traces_need_mlflow():
    with pytest.raises(ConfigError, match="--traces needs MLflow"):
        EvaluateConfig(traces=True, mlflow=False)


def test_every_setting_says_what_it_means():
    for name, field in EvaluateConfig.flat_fields().items():
        assert len(field.description or "") > 30, name
        assert "\n" not in (field.description or ""), name


def test_every_system_name_can_be_made():
    assert [name.value for name in SystemName] == list(SYSTEMS)
    for name in SystemName:
        system = SYSTEMS[name.value](SystemSettings())
        assert system.writes_memories == name.has_model_writer
        assert bool(system.predictors()) == name.has_model_reader
    assert all(
        name.value in (EvaluateConfig.flat_fields()["systems"].description or "") for name in SystemName
    )


def test_splits_and_rubrics_are_those_of_the_benchmark():
    splits = {*get_args(SplitOrAll), *get_args(MemBuilderSplit)}
    assert set(get_args(EvaluateConfig.flat_fields()["split"].annotation)) == splits
    assert split_list(EvaluateConfig().rubrics) == [rubric.value for rubric in Rubric]
