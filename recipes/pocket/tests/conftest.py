"""The fixtures of the project's tests apply here, too."""

from tests.conftest import _forget_dspy  # noqa: F401
