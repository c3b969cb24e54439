"""The fixtures of the project's tests apply here, too."""

from tests.conftest import _copy_mlflow_tables, _forget_dspy  # noqa: F401
