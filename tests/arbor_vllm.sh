#!/usr/bin/env bash
# Adds vLLM 0.10.0 itself, for processors, to the environment of Arbor that .ci/run makes: test_arbor_server.py
# then runs on it instead of the stand-in. It is compiled for the torch that is there, which takes minutes; the
# wheels for processors want another torch. Needs g++ and libnuma-dev.  Usage: tests/arbor_vllm.sh PYTHON
set -euo pipefail
bin=$(cd "$(dirname "$1")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
install() { "$bin/pip" install --quiet --no-deps "$@"; }

install cmake==3.31.10 ninja==1.13.2 setuptools==79.0.0 setuptools-scm==10.3.4 vcs-versioning wheel
# What vLLM imports, without its torch and triton.
install numpy==2.2.6 numba==0.61.2 llvmlite==0.44.0 openai==1.90.0 outlines-core==0.2.10 lark==1.2.2 \
    compressed-tensors==0.10.2 depyf==0.19.0 astor==0.8.1 sentencepiece==0.2.3 blake3==1.0.11 py-cpuinfo==9.0.0 \
    prometheus-fastapi-instrumentator==8.1.0 lm-format-enforcer==0.10.12 interegular==0.3.3 llguidance==0.7.30 \
    xgrammar==0.1.21 partial-json-parser==0.2.1.1.post7 msgspec==0.22.0 einops==0.8.2 \
    python-json-logger==4.2.0 pybase64==1.5.1 cbor2==6.3.0
export PATH="$bin:$PATH"
"$bin/pip" download --quiet --no-deps --no-build-isolation --no-binary vllm --dest "$work" vllm==0.10.0
# Without AVX-512 it needs no oneDNN, which its build would clone.
VLLM_TARGET_DEVICE=cpu VLLM_CPU_DISABLE_AVX512=true CMAKE_BUILD_TYPE=Release \
    "$bin/pip" install --quiet --no-deps --no-build-isolation "$work"/vllm-0.10.0.tar.gz
