"""Trajectories in the formats of other trainers: LLaMA-Factory for supervised fine-tuning, verl for RL."""

import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from memory_program.bank.budget import count_tokens
from memory_program.core.errors import ModelError, RecordError
from memory_program.sft.session_lines import SessionLine

DATASET_NAME = "memory_writer"
"""The name of the dataset in LLaMA-Factory's ``dataset_info.json``, and verl's ``data_source``."""

VerlRowUnit = Literal["session", "question"]

_SPEAKERS = {"user": "human", "assistant": "gpt"}
_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_EXTRA_INFO = pa.struct(
    [("index", pa.int64()), *((name, pa.string()) for name in ("namespace", "agent", "episode", "earlier"))]
)
_SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", _MESSAGES),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        ("extra_info", _EXTRA_INFO),
    ]
)


def write_llamafactory(lines: Sequence[SessionLine], folder: Path) -> list[Path]:
    """Write the valid exchanges for LLaMA-Factory; raise ``RecordError`` if there are none.

    Only the last reply of a row is to be learned (``mask_history: true``): those before are demonstrations.
    Source: its data/README.md ("Sharegpt Format": conversations of human and gpt, and a system column).
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []  # Any: JSON
    for call in (call for line in lines for call in line["calls"] if call["is_valid"]):
        said = [message for message in call["messages"] if message["role"] != "system"]
        turns = [{"from": _SPEAKERS[message["role"]], "value": message["content"]} for message in said]
        turns.append({"from": "gpt", "value": call["reply"]})
        system = "\n\n".join(one["content"] for one in call["messages"] if one["role"] == "system")
        rows.append({"conversations": turns, "system": system})
    if not rows:
        raise RecordError("no exchange of these trajectories is valid: there is nothing to learn from")
    columns = {"messages": "conversations", "system": "system"}
    entry = {"file_name": f"{DATASET_NAME}.json", "formatting": "sharegpt", "columns": columns}
    contents = {f"{DATASET_NAME}.json": rows, "dataset_info.json": {DATASET_NAME: entry}}
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return [folder / name for name in contents]


def write_verl(lines: Sequence[SessionLine], path: Path, by: VerlRowUnit = "session") -> int:
    """Write verl's parquet, one row per agent and session or question, and return the number of rows.

    A row has all that ``verl_reward.compute_score`` sends to the reward server, with the expert's lengths.
    Each row by question has its own namespace, for example ``conv-26-qa159-4f01449a``. An agent with several
    turns has a row for its last one: the prompt has the results of its earlier calls, and the reward server
    repeats its ``earlier`` replies before the sampled one.

    Raises:
        RecordError: no session has questions.
    """
    rows: list[dict[str, Any]] = []  # Any: JSON
    for line in lines:
        turns: dict[str, list[dict[str, Any]]] = {}
        for call in line["calls"]:
            turns.setdefault(call["agent"], []).append(call)
        questions, expert_tokens = line["episode"]["questions"], Counter[str]()
        for memory in (memory for operation in line["operations"] for memory in operation["created"]):
            expert_tokens[memory["kind"]] += count_tokens(memory["text"])
        for part in [questions] if by == "session" else [[question] for question in questions]:
            if not part:
                continue
            episode: dict[str, Any] = {  # Any: a JSON object
                **line["episode"],
                "questions": part,
                "expert_tokens": dict(expert_tokens),
            }
            digest = hashlib.sha256(json.dumps(episode, sort_keys=True).encode()).hexdigest()[:8]
            unit = f"s{episode['session']['number']}" if by == "session" else f"qa{part[0]['index']}"
            gold = json.dumps([q["answer"] for q in part])
            for agent, (*before, call) in turns.items():
                extra_info = {
                    "index": len(rows),
                    "namespace": f"{episode['conversation_id']}-{unit}-{digest}",
                    "agent": agent,
                    "episode": json.dumps(episode),
                    "earlier": json.dumps([one["reply"] for one in before]),
                }
                row = {"data_source": DATASET_NAME, "prompt": call["messages"], "ability": "memory"}
                reward_model = {"style": "rule", "ground_truth": gold}
                rows.append({**row, "reward_model": reward_model, "extra_info": extra_info})
    if not rows:
        raise RecordError(
            "nothing is asked about the sessions of these trajectories: nothing can be rewarded"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), path)
    return len(rows)


def find_verl_model(folder: Path) -> Path:
    """Find the model in a folder of verl: of a training, of a checkpoint, or of a merged model.

    A checkpoint holds shards for each GPU, which are pickled objects of the verl that wrote them. Only verl
    reads them safely: its own tool merges them.

    Raises:
        ModelError: the model is not merged yet, or there is none.
    """
    steps = sorted(folder.glob("global_step_*"), key=lambda path: int(path.name.rpartition("_")[2]))
    checkpoint = steps[-1] if steps else folder
    places = [checkpoint, checkpoint / "actor"]
    for place in (one for parent in places for one in (parent, parent / "huggingface")):
        if (place / "lora_adapter").is_dir():
            raise ModelError(
                f"{str(place / 'lora_adapter')!r} holds adapters beside the model, and verl's tool does not "
                "know their lora_alpha: merge them with PEFT, with that of your training, and name the result"
            )
        if any(place.glob("*.safetensors")) and (place / "config.json").is_file():
            return place
    for place in places:
        for backend, pattern in (("fsdp", "model_world_size_*_rank_*.pt"), ("megatron", "dist_ckpt")):
            if any(place.glob(pattern)):
                raise ModelError(
                    f"{str(place)!r} holds shards that only verl can read: in its environment, python -m "
                    f"verl.model_merger merge --backend {backend} --local_dir {shlex.quote(str(place))} "
                    "--target_dir runs/verl-merged; then give --from-verl runs/verl-merged"
                )
    raise ModelError(
        f"{str(folder)!r} holds no checkpoint of verl: name its global_step_N/actor, or a merged model with "
        "config.json and *.safetensors"
    )
