"""Images and services, which no test starts: what they copy, install and pass exists."""

import configparser
import re
import shlex
import tomllib

import pytest
import yaml

from memory_program.configs.serve_config import ServeConfig
from memory_program.core.command_line import parse_flags
from memory_program.rl.backends.backend_choice import choose_backend
from tests.conftest import CHECKOUT


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda", "Dockerfile.serve"])
def test_a_dockerfile_copies_files_that_exist_and_installs_extras_that_exist(name):
    text = (CHECKOUT / "deploy" / name).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    words = {line.split()[0] for line in lines}
    assert words <= {"FROM", "RUN", "ENV", "WORKDIR", "COPY", "USER", "ENTRYPOINT", "CMD"}
    assert lines[0].startswith("FROM ")
    assert not lines[0].endswith(":latest")
    for line in lines:
        if line.startswith("COPY "):
            assert all((CHECKOUT / source).exists() for source in line.split()[1:-1])
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert lines[-2] == 'ENTRYPOINT ["memory-program"]'
    assert any(line.startswith("USER ") for line in lines)


def test_the_command_of_the_gpu_image_trains_in_its_process_and_samples_on_vllm():
    text = (CHECKOUT / "deploy" / "Dockerfile.cuda").read_text(encoding="utf-8").replace("\\\n#", " ")
    (command,) = re.findall(r"docker run .*", text)
    docker, words = command.split(" memory-program-cuda train ")
    assert '--user "$(id -u):$(id -g)" -e HOME=/work' in docker  # so that it can write to the mounted folder
    choice = choose_backend(shlex.split(words))
    config = parse_flags(choice.config_type, shlex.split(words))
    assert (config.backend, config.samples_on_vllm) == ("local", True)


def test_the_services_of_compose_fit_together_and_the_server_asks_for_a_token():
    path = CHECKOUT / "deploy/compose.yaml"
    compose = yaml.safe_load(path.read_text(encoding="utf-8"))
    memory, database = compose["services"]["memory"], compose["services"]["db"]
    assert (path.parent / memory["build"]["context"] / memory["build"]["dockerfile"]).is_file()
    words = shlex.split(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", memory["command"]))
    assert words[0] == "serve"
    config = parse_flags(ServeConfig, words[1:], prog="serve")
    assert config.asks_for_tokens
    settings = database["environment"]
    assert config.db_url == f"postgresql://{settings['POSTGRES_USER']}@db/{settings['POSTGRES_DB']}"
    assert memory["ports"] == [f"127.0.0.1:{config.doors.port}:{config.doors.port}"]
    assert f":{config.doors.port}/health" in memory["healthcheck"]["test"][-1]
    assert memory["depends_on"]["db"]["condition"] == "service_healthy"
    assert "healthcheck" in database
    assert int(memory["stop_grace_period"].removesuffix("s")) > config.doors.grace
    for volume in database["volumes"]:
        assert volume.partition(":")[0] in compose["volumes"]


def test_the_systemd_unit_passes_flags_that_exist_and_stays_on_this_machine():
    text = (CHECKOUT / "deploy/memory-program.service").read_text(encoding="utf-8").replace("\\\n", " ")
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string(text)
    service = unit["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[1] == "serve"
    config = parse_flags(ServeConfig, words[2:], prog="serve")
    assert not config.asks_for_tokens
    assert f"/var/lib/{service['StateDirectory']}/" in config.db_url
    assert int(service["TimeoutStopSec"]) > config.doors.grace
    (hint,) = re.findall(r"token create .*--db-url (\S+)", text)
    assert hint == config.db_url


def test_the_settings_for_verl_name_our_reward_function():
    settings = yaml.safe_load((CHECKOUT / "recipes/verl/memory_grpo.yaml").read_text(encoding="utf-8"))
    function = settings["reward"]["custom_reward_function"]
    assert f"def {function['name']}(" in (CHECKOUT / function["path"]).read_text(encoding="utf-8")
