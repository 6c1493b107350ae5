#!/usr/bin/env bash
# Installs one wheel file beside each TensorFlow and trains with it:  tools/wheel_smoke.sh WHEEL VENV...
#
# Each VENV lends its TensorFlow (a .pth line) to a fresh environment that has nothing else, so the wheel's own
# requirements are resolved against it and the editable install of VENV is out of sight. The VENVs are tried side by side.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
wheel=$(realpath "$1")
shift
scratch=$root/build/smoke
version='import importlib.metadata as m; print(m.version("tensorflow-cpu"))'

try_with() {
  local lender=$1 purelib before after venv
  if [ ! -x "$lender/bin/python" ]; then
    echo "SKIPPED: the wheel under $lender: there is no such environment"
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
    # Keras 2 beside Keras 3. Its wheel asks for the package `tensorflow`, which tensorflow-cpu is not.
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
  wait "$trial"  # a trial that failed ends the script
done
