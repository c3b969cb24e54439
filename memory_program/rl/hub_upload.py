"""A trained model on the Hugging Face hub: only when asked, and private unless it is there already."""

import re
from pathlib import Path

from httpx import HTTPError
from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

from memory_program.core.errors import ConfigError, ModelError

_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def check_hub_access(name: str | None) -> None:
    """Find out early whether a result can be pushed; None asks for nothing.

    Raises:
        ConfigError: the name is none of a repository, or there is no token.
    """
    if name is None:
        return
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"push_to_hub={name!r} is not the name of a repository: one looks like 'owner/model'"
        )
    if get_token() is None:
        raise ConfigError(
            f"push_to_hub={name!r} needs a token of the Hugging Face hub: run 'hf auth login', or set "
            "HF_TOKEN"
        )


def upload_to_hub(folder: Path, name: str, *, endpoint: str | None = None) -> str:
    """Upload the files of a folder as one commit, and give its address; what is there already stays as it is.

    Args:
        folder: of the model: weights, tokenizer, program, card.
        name: of the repository, ``owner/model``; made, and private, if it is not there.
        endpoint: of the hub; by default that of the environment (``HF_ENDPOINT``).

    Raises:
        ModelError: the hub refuses, or cannot be reached.
    """
    hub = HfApi(endpoint=endpoint)
    try:
        hub.create_repo(name, private=True, exist_ok=True)
        done = hub.upload_folder(
            repo_id=name,
            folder_path=folder,
            commit_message="Add a writer that was trained to remember",
            ignore_patterns=["*.draft"],
        )
    except (HfHubHTTPError, HFValidationError, HTTPError, OSError) as error:
        raise ModelError(
            f"{str(folder)!r} could not be pushed to {name!r}: {' '.join(str(error).split())}; it is kept, "
            "and --mode evaluate with the same --output-dir and --push-to-hub tries again"
        ) from error
    return str(done.commit_url)
