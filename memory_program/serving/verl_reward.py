"""verl's view of the reward: ``custom_reward_function.path=.../verl_reward.py``, which asks a reward server.

verl trains on ``score`` and logs the other numbers. The length penalty is part of the reward already; its
weight and limits are flags of the server. This file imports nothing but the standard library, so that verl's
own environment can load it alone. The rows of ``train.py --mode export --format verl`` hold the episode and
the agent in ``extra_info``.
"""

import json
import os
import urllib.error
import urllib.request
from typing import Any

_ADDRESS = "MEMORY_PROGRAM_REWARD_URL"
_TOKEN = "MEMORY_PROGRAM_REWARD_TOKEN"
_TIMEOUT_S = 300.0


def compute_score(
    data_source: str, solution_str: str, ground_truth: object, extra_info: dict[str, Any] | None = None
) -> dict[str, float]:
    """Return the reward of a reply as ``score``, with its parts; verl calls this function.

    The parts are ``task_score``, ``length_penalty``, ``is_valid`` (1 or 0), and of the attribution
    ``retrieved`` and ``weight``.

    Args:
        data_source: unused.
        solution_str: the reply.
        ground_truth: unused, because the episode has the gold answers.
        extra_info: the row's ``agent``, ``episode`` (JSON text or an object), and the agent's ``earlier``
            replies (JSON text or a list).

    Raises:
        RuntimeError: the server cannot be reached, or returns no reward.
    """
    if extra_info is None or not {"agent", "episode"} <= extra_info.keys():
        raise RuntimeError(
            "extra_info has no agent and episode: train on rows of train.py --mode export --format verl"
        )
    episode, earlier = extra_info["episode"], extra_info.get("earlier", [])
    item = {
        "agent": extra_info["agent"],
        "reply": solution_str,
        "episode": json.loads(episode) if isinstance(episode, str) else episode,
        "earlier": json.loads(earlier) if isinstance(earlier, str) else earlier,
    }
    address = os.environ.get(_ADDRESS, "http://127.0.0.1:8765").rstrip("/")
    headers = {"Content-Type": "application/json"}
    if os.environ.get(_TOKEN):
        headers["Authorization"] = f"Bearer {os.environ[_TOKEN]}"
    request = urllib.request.Request(
        f"{address}/reward", json.dumps({"items": [item]}).encode(), headers, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            (found,) = json.load(response)["items"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"the reward server at {address} refused: {error.read()[:300]!r}") from error
    except OSError as error:  # of urllib; or, once it is connected, as it comes: too slow, gone
        raise RuntimeError(
            f"no reward from {address} ({error}): start one with python -m "
            f"memory_program.serving.reward_server, or set {_ADDRESS}"
        ) from error
    if "error" in found:
        raise RuntimeError(f"no reward: {found['error']}")
    return {
        "score": float(found["reward"]),
        "task_score": float(found["score"]),
        **{name: float(found[name]) for name in ("length_penalty", "is_valid", "retrieved", "weight")},
    }
