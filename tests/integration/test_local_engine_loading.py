"""Damaged, incomplete or unsupported models are refused with the reason; a hub model is downloaded once."""

import json
import os
import shutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

from memory_program.core.errors import ConfigError, ModelError
from memory_program.inference.loading import load_model, read_network_shape
from memory_program.models.factory import language_model
from memory_program.models.model_names import model_fingerprint
from tests.model_hub import ModelHub, hub_of
from tests.tiny_model import save_tiny_model

TINY = {"vocab_size": 384, "hidden_size": 32, "num_hidden_layers": 2, "eos_token_id": 1}
ASK = """
from memory_program.models.factory import language_model
lm = language_model("local:owner/tiny", max_tokens=4)
print(repr(lm("Who adopted the turtle?")[0]))
"""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("good"))


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return shutil.copytree(good, tmp_path / "model")


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def overwrite(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content) and None


def configure(name: str = "config.json", **settings: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / name).read_text())
        config.update(settings)
        (folder / name).write_text(json.dumps({key: value for key, value in config.items() if value != "-"}))

    return edit


def edit_weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return edit


def poison(weights: dict[str, torch.Tensor]) -> None:
    weights["model.norm.weight"][3] = torch.inf


def remove_stop_token_of_the_tokenizer(folder: Path) -> None:
    configure("tokenizer_config.json", eos_token=None)(folder)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|im_end|>", ""))


def remove_stop_token(folder: Path) -> None:
    remove_stop_token_of_the_tokenizer(folder)
    configure(eos_token_id=None)(folder)
    configure("generation_config.json", eos_token_id=None)(folder)


def test_onednn_keeps_few_kernels_unless_the_user_says_how_many(folder: Path, monkeypatch) -> None:
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    monkeypatch.delenv(name, raising=False)
    load_model(str(folder), "cpu", torch.float32)
    assert os.environ[name] == "64"
    monkeypatch.setenv(name, "7")
    load_model(str(folder), "cpu", torch.float32)
    assert os.environ[name] == "7"


def test_the_chat_template_says_what_ends_a_reply(folder: Path) -> None:
    configure("tokenizer_config.json", eos_token="<|im_start|>")(folder)
    engine = language_model(f"local:{folder}").engine.local
    tokenizer = engine.model.tokenizer
    start, end = tokenizer.convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    assert tokenizer.eos_token_id == start
    assert engine.reply_tokens("hello")[-1] == end
    assert engine.model.stop_ids == {start, end}


def test_the_generation_config_may_be_the_only_one_to_say_what_ends_a_reply(folder: Path) -> None:
    remove_stop_token_of_the_tokenizer(folder)
    model = language_model(f"local:{folder}").engine.local.model
    configured = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    assert model.reply_end == configured
    assert model.stop_ids == {configured}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "the weights of .* cannot be read: SafetensorError"),
        (remove("model.safetensors"), "the weights of .* cannot be read: OSError: .*model.safetensors"),
        (remove("config.json"), "the weights of .* cannot be read"),
        (overwrite("config.json", "{"), "the weights of .* cannot be read"),
        (configure(model_type="nothing"), "the weights of .* cannot be read: .*nothing"),
        (
            configure(num_hidden_layers=3, layer_types="-"),
            r"config.json describes \(12 not in the file, as model.layers.2",
        ),
        (configure(num_hidden_layers=1, layer_types="-"), r"12 not in the network, as model.layers.1"),
        (configure(intermediate_size=96), r"6 of another size, as .*model.layers.0.mlp"),
        (edit_weights(lambda weights: weights.pop("model.norm.weight")), "1 not in the file, as model.norm"),
        (edit_weights(poison), "some weights are not finite numbers"),
        (configure(vocab_size=384, max_position_embeddings=None), "max_position_embeddings"),
        (remove("tokenizer.json"), "has no tokenizer: one of tokenizer.json"),
        (overwrite("tokenizer.json", '{"version": "1.0"}'), "the tokenizer of .* cannot be read"),
        (remove("chat_template.jinja"), "has no chat template"),
        (remove_stop_token, "names no token that ends a reply"),
    ],
)
def test_an_error_says_what_is_wrong_with_a_model(
    folder: Path, damage: Callable[[Path], None], message: str
) -> None:
    damage(folder)
    with pytest.raises(ModelError, match=message) as caught:
        language_model(f"local:{folder}")
    assert str(folder) in str(caught.value)


def test_a_tokenizer_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    small = save_tiny_model(tmp_path / "small", vocab_size=64)
    shutil.copy(small / "model.safetensors", folder)
    shutil.copy(small / "config.json", folder)
    with pytest.raises(ModelError, match=r"the tokenizer has 3\d\d tokens and the weights 64"):
        language_model(f"local:{folder}")


def test_a_model_with_another_cache_is_refused_with_a_way_to_serve_it(folder: Path) -> None:
    MistralForCausalLM(
        MistralConfig(
            **TINY, intermediate_size=32, num_attention_heads=2, num_key_value_heads=2, sliding_window=64
        )
    ).save_pretrained(folder)
    with pytest.raises(ModelError, match=r"MistralForCausalLM.*DynamicSlidingWindowLayer.*vLLM.*api_base"):
        language_model(f"local:{folder}")
    MambaForCausalLM(
        MambaConfig(**TINY, state_size=4, expand=1, conv_kernel=2, max_position_embeddings=64)
    ).save_pretrained(folder)
    with pytest.raises(ModelError, match=r"MambaForCausalLM.*cannot be batched here.*vLLM"):
        language_model(f"local:{folder}")


def test_a_model_with_its_own_attention_is_refused(folder: Path) -> None:
    StableLmForCausalLM(
        StableLmConfig(**TINY, intermediate_size=32, num_attention_heads=2, num_key_value_heads=2)
    ).save_pretrained(folder)
    with pytest.raises(ModelError, match=r"StableLmForCausalLM\) attends in a way of its own.*vLLM"):
        language_model(f"local:{folder}")


def test_a_model_with_values_of_another_width_is_refused(folder: Path) -> None:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": None, "kv_lora_rank": 8}
    widths = {"qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    experts = {"n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}
    sizes = {"intermediate_size": 32, "moe_intermediate_size": 16}
    config = DeepseekV2Config(**TINY, **heads, **widths, **experts, **sizes)
    DeepseekV2ForCausalLM(config).save_pretrained(folder)
    with pytest.raises(ModelError, match=r"DeepseekV2ForCausalLM\) attends in a way of its own.*vLLM"):
        language_model(f"local:{folder}")


def test_pickled_weights_are_never_loaded(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"the weights of .* cannot be read: OSError"):
        language_model(f"local:{folder}")


def test_weights_are_converted_to_the_requested_dtype(folder: Path) -> None:
    edit_weights(lambda weights: weights.update({name: w.bfloat16() for name, w in weights.items()}))(folder)
    configure(dtype="bfloat16")(folder)
    assert load_model(str(folder), "cpu", torch.float32).network.dtype == torch.float32


def test_a_folder_is_loaded_without_network_or_output(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    load_model(str(folder), "cpu", torch.float32)
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def adapter(good: Path, tmp_path: Path) -> Path:
    """An adapter of the model ``good`` that changes its replies."""
    network = get_peft_model(
        load_model(str(good), "cpu", torch.float32).network, LoraConfig(r=2, target_modules="all-linear")
    )
    torch.manual_seed(1)
    for name, weight in network.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(weight, std=0.3)
    network.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def test_an_adapter_in_a_folder_is_merged_into_the_base_that_it_names(good: Path, adapter: Path) -> None:
    prompt = torch.tensor([[3, 5, 8]])
    base = load_model(str(good), "cpu", torch.float32)
    with warnings.catch_warnings(action="error"):
        loaded = load_model(str(adapter), "cpu", torch.float32)
    expected = PeftModel.from_pretrained(load_model(str(good), "cpu", torch.float32).network, adapter)
    with torch.no_grad():
        found, other = (model.network(prompt).logits for model in (loaded, base))
        assert torch.allclose(found, expected(prompt).logits, atol=1e-4)
    assert not torch.allclose(found, other, atol=1e-2)
    assert read_network_shape(str(adapter)) == read_network_shape(str(good))
    name = f"local:{adapter}"
    assert model_fingerprint(name).endswith(model_fingerprint(f"local:{good}").rpartition("@")[2])
    reply = language_model(name, max_tokens=4)("Who adopted the turtle?")
    assert reply != language_model(f"local:{good}", max_tokens=4)("Who adopted the turtle?")


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (configure("adapter_config.json", base_model_name_or_path=None), "names no base model"),
        (
            configure("adapter_config.json", base_model_name_or_path="/no/where"),
            "'/no/where' is not a folder",
        ),
        (overwrite("adapter_config.json", "{"), "adapter_config.json' cannot be read"),
        (remove("adapter_model.safetensors"), "the adapter of .* cannot be read"),
    ],
)
def test_a_damaged_adapter_is_refused(adapter: Path, damage: Callable[[Path], None], complaint: str) -> None:
    damage(adapter)
    with pytest.raises((ConfigError, ModelError), match=complaint):
        load_model(str(adapter), "cpu", torch.float32)


def test_a_missing_base_is_told_with_the_adapter_that_names_it(adapter: Path) -> None:
    configure("adapter_config.json", base_model_name_or_path="../base")(adapter)
    told = f"the base of the adapter '{adapter}' \\(base_model_name_or_path .*\\): '../base' is not a folder"
    with pytest.raises(ModelError, match=told):
        load_model(str(adapter), "cpu", torch.float32)
    with pytest.raises(ModelError, match=told):
        read_network_shape(str(adapter))


def test_an_adapter_that_names_itself_as_its_base_is_refused(adapter: Path) -> None:
    configure("adapter_config.json", base_model_name_or_path=str(adapter / "."))(adapter)
    for read in (read_network_shape, lambda source: model_fingerprint(f"local:{source}")):
        with pytest.raises(ConfigError, match="names itself as its base model: set base_model_name_or_path"):
            read(str(adapter))


def test_a_gguf_file_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tiny.gguf"
    with pytest.raises(ModelError, match=r"tiny.gguf' is not a file on this disk"):
        language_model(f"local:{file}")
    file.write_bytes(b"GGUF, and then something else")
    with pytest.raises(ModelError, match=r"the weights of .*tiny.gguf' cannot be read"):
        language_model(f"local:{file}")
    monkeypatch.setitem(sys.modules, "gguf", None)  # as if it were not installed
    with pytest.raises(ModelError, match=r"tiny.gguf': a GGUF file is read with .*pip install gguf"):
        language_model(f"local:{file}")


def ask(hub_address: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))
    }
    environment |= {"HF_ENDPOINT": hub_address, "HF_HOME": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", ASK]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=250)


def ask_here(hub_address: str, cache: Path) -> str:
    """Ask as ``ask`` does, in this process, which has imported torch."""
    with pytest.MonkeyPatch.context() as patch:
        file_address = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub_address)
        patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", file_address)
        patch.setattr(constants, "ENDPOINT", hub_address)
        patch.setattr(constants, "HF_HUB_CACHE", str(cache / "hub"))
        lm = language_model("local:owner/tiny", max_tokens=4)
        answer = lm("Who adopted the turtle?")[0]
        lm.engine.local.close()
    return f"{answer!r}\n"


@pytest.fixture(scope="module")
def fetched(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ModelHub, Path, str]]:
    """A hub, the cache of a process that fetched a model from it, and the answer of that model."""
    cache = tmp_path_factory.mktemp("hub-cache")
    with hub_of(good) as hub:
        done = ask(hub.address, cache)
        assert done.returncode == 0, done.stderr
        yield hub, cache, done.stdout


def test_a_hub_model_is_downloaded_once_and_works_offline_afterwards(
    fetched: tuple[ModelHub, Path, str],
) -> None:
    hub, cache, answer = fetched
    assert any(path.endswith("/model.safetensors") for path in hub.asked)
    asked = len(hub.asked)
    assert ask_here(hub.address, cache) == answer
    assert [path for path in hub.asked[asked:] if "owner/tiny" in path] == []
    assert ask("http://127.0.0.1:9", cache).stdout == answer


def test_files_missing_after_an_interrupted_download_are_downloaded(
    fetched: tuple[ModelHub, Path, str], tmp_path: Path
) -> None:
    hub, whole, answer = fetched
    cache = shutil.copytree(whole, tmp_path / "cache", symlinks=True)
    (missing,) = cache.glob("hub/models--owner--tiny/snapshots/*/tokenizer.json")
    missing.resolve().unlink()
    missing.unlink()
    asked = len(hub.asked)
    assert ask_here(hub.address, cache) == answer
    again = {path.rpartition("/")[2] for path in hub.asked[asked:]}
    assert "tokenizer.json" in again
    assert "model.safetensors" not in again


def test_an_adapter_is_downloaded_from_the_hub_once(adapter: Path, tmp_path: Path) -> None:
    with hub_of(adapter) as hub:
        answer = ask_here(hub.address, tmp_path / "cache")
        asked = len(hub.asked)
        assert ask_here(hub.address, tmp_path / "cache") == answer
        assert [path for path in hub.asked[asked:] if "owner/tiny" in path] == []


def test_without_a_network_a_hub_model_is_refused_with_both_remedies(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as refused:
        ask_here("http://127.0.0.1:9", tmp_path)
    (message,) = str(refused.value).splitlines()
    assert "'owner/tiny' is not a folder here, and cannot be fetched from the Hugging Face hub" in message
    assert "let this machine reach the hub once" in message
    assert "give its folder, 'local:PATH'" in message
