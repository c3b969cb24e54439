#!/usr/bin/env bash
# Tries an installation without extras, from an empty folder: the command, an evaluation without a model, and the
# README's Python example against a test server.  Usage: tests/base_install.sh PYTHON
set -euo pipefail
checkout=$(cd "$(dirname "$0")/.." && pwd)
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
cd "$empty"
"$1" -c 'import importlib.util as u; assert not [n for n in ("torch", "transformers", "peft") if u.find_spec(n)]'
memory-program --help >help.txt
memory-program world --seed 7 --conversations 2 --out talk.json
memory-program evaluate --dataset talk.json --systems extractive --no-mlflow
test -s runs/evaluate/results.json
if memory-program evaluate --num-test 1 --no-mlflow 2>error.txt; then
    echo "pocket ran without the extra local" >&2
    exit 1
fi
grep -q "memory-program\[local\]" error.txt
"$1" "$checkout/tests/readme_example.py"
