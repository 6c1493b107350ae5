#!/usr/bin/env bash
# Makes the environments of the peers that `python -m benchmarks jobs --peers`, and `step` and `layers`, measure:  tools/bench_peers.sh
# The Makefile makes the environment of Keras 2, .venv-tf215.
set -euo pipefail

tools/venv.sh .venv-torchrec benchmarks/peers/requirements-torchrec.txt
.venv-torchrec/bin/python -m pip install -qq --disable-pip-version-check --no-deps torchrec==1.8.0
MAX_PYTHON=3.11 tools/venv.sh .venv-tfra benchmarks/peers/requirements-tfra.txt
if [ -x .venv-tfra/bin/python ]; then
  .venv-tfra/bin/python -m pip install -qq --disable-pip-version-check --no-deps tensorflow-recommenders-addons==0.8.1
fi
