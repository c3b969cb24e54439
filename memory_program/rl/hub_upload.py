"""Upload a trained model to the Hugging Face hub: only on request; a new repository is private."""

import re
from pathlib import Path

from httpx import HTTPError
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from memory_program.core.errors import ConfigError, RunFailedError

_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def check_hub_access(name: str | None) -> None:
    """Check before a training that its result can be uploaded; None uploads nothing.

    Raises:
        ConfigError: the name is not that of a repository, or there is no token.
    """
    if name is None:
        return
    if not _NAME.fullmatch(name):
        raise ConfigError(f"push_to_hub={name!r} is not the name of a repository: write it as 'owner/model'")
    if get_token() is None:
        raise ConfigError(
            f"push_to_hub={name!r} needs a token of the Hugging Face hub: run 'hf auth login', or set "
            "HF_TOKEN"
        )


def upload_to_hub(folder: Path, name: str, *, endpoint: str | None = None) -> str:
    """Upload the files of a folder as one commit, and return its address; other files there stay.

    Args:
        folder: of the model: weights, tokenizer, program, card.
        name: of the repository, ``owner/model``; a missing one is created as private.
        endpoint: of the hub; by default ``HF_ENDPOINT`` of the environment.

    Raises:
        RunFailedError: the hub refuses, or cannot be reached.
    """
    hub = HfApi(endpoint=endpoint)
    try:
        hub.create_repo(name, private=True, exist_ok=True)
        done = hub.upload_folder(
            repo_id=name,
            folder_path=folder,
            commit_message="Add a trained memory writer",
            ignore_patterns=["*.draft"],
        )
    except (HfHubHTTPError, HFValidationError, HTTPError, OSError) as error:
        raise RunFailedError(
            f"{str(folder)!r} could not be uploaded to {name!r}: {' '.join(str(error).split())}; the folder "
            "is kept: to try again, use --mode evaluate with the same --output-dir and --push-to-hub"
        ) from error
    return str(done.commit_url)
