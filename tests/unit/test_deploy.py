"""The Dockerfiles, which no test builds: what they copy and install exists."""

import re
import tomllib

import pytest
import yaml

from tests.conftest import CHECKOUT


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.cuda"])
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


def test_the_settings_for_verl_name_our_reward_function():
    settings = yaml.safe_load((CHECKOUT / "recipes/verl/memory_grpo.yaml").read_text(encoding="utf-8"))
    function = settings["reward"]["custom_reward_function"]
    assert f"def {function['name']}(" in (CHECKOUT / function["path"]).read_text(encoding="utf-8")
