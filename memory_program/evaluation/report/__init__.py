"""Reports of an evaluation: tables, plots, HTML page, MLflow."""
