#!/usr/bin/env bash
# Installs a wheel with the TensorFlow of each VENV, and trains with it:  tools/wheel_smoke.sh WHEEL VENV...
#
# For each VENV, the script makes a new environment, whose .pth file contains the packages of VENV. So pip resolves the
# requirements of the wheel with that TensorFlow, and the editable install of VENV is not visible. All VENVs run in
# parallel.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
wheel=$(realpath "$1")
shift
scratch=$root/build/smoke
version='import importlib.metadata as m; print(m.version("tensorflow-cpu"))'

try_with() {
  local lender=$1 purelib before after venv
  if [ ! -x "$lender/bin/python" ]; then
    echo "SKIPPED: the wheel with $lender: this environment does not exist"
    return
  fi
  lender=$(cd "$lender" && pwd)
  venv=$scratch/$(basename "$lender")
  rm -rf "$venv"
  "$lender/bin/python" -m venv "$venv"
  purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
  "$lender/bin/python" -c "$purelib" > "$("$venv/bin/python" -c "$purelib")/lender.pth"
  before=$("$venv/bin/python" -c "$version")
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check --ignore-installed --no-deps "$wheel"
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check "$wheel"
  after=$("$venv/bin/python" -c "$version")
  if [ "$before" != "$after" ]; then
    echo "installing the wheel changed TensorFlow from $before to $after" >&2
    return 1
  fi
  (cd "$scratch" && "$venv/bin/python" "$root/tools/wheel_smoke.py" "$root")
  if "$venv/bin/python" -c 'import importlib.metadata as m, sys; sys.exit(m.version("keras") < "3")'; then
    # Keras 2 is installed next to Keras 3, without dependencies: its wheel requires `tensorflow`, not tensorflow-cpu.
    "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-deps "tf_keras==${after%.*}.*"
    (cd "$scratch" && TF_USE_LEGACY_KERAS=1 "$venv/bin/python" "$root/tools/wheel_smoke.py" "$root")
  fi
}

trials=()
for lender in "$@"; do
  (set -e; try_with "$lender") &
  trials+=($!)
done
for trial in "${trials[@]}"; do
  wait "$trial"  # a trial that fails ends the script
done
