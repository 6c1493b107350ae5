#!/usr/bin/env bash
# Installs a wheel beside TensorFlow, and trains with it:  tools/wheel_smoke.sh WHEELS ENVIRONMENT...
#
# WHEELS is a wheel, or a folder with one for each Python. An ENVIRONMENT is one of two things:
#
#   VENV              an existing environment with TensorFlow. The script makes a new one, whose .pth file contains the
#                     packages of VENV. So pip resolves the requirements of the wheel with that TensorFlow, and the
#                     editable install of VENV is not visible.
#   PYTHON@VERSION    an interpreter and a version of tensorflow-cpu, which the script installs with the wheel. It also
#                     runs the quick start of the documentation there, without compilers on PATH.
#
# Environments of the first kind run in parallel, the others in turn.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
wheels=$(realpath "$1")
shift
scratch=$root/build/smoke
version='import importlib.metadata as m; print(m.version("tensorflow-cpu"))'
pip=(-m pip install -qq --disable-pip-version-check)

# Prints the wheel for an interpreter.
wheel_for() {
  local tag
  if [ -f "$wheels" ]; then
    echo "$wheels"
    return
  fi
  tag=$("$1" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  if ! ls "$wheels"/*-"$tag"-"$tag"-*.whl 2>/dev/null; then
    echo "$wheels has no wheel for $1 ($tag). Build it with: make wheels" >&2
    return 1
  fi
}

# Trains with an installed wheel:  check VENV
check() {
  (cd "$scratch" && "$1/bin/python" "$root/tools/wheel_smoke.py" "$root")
}

with_lender() {
  local lender=$1 purelib before after venv wheel
  if [ ! -x "$lender/bin/python" ]; then
    echo "SKIPPED: the wheel with $lender: this environment does not exist"
    return
  fi
  lender=$(cd "$lender" && pwd)
  venv=$scratch/$(basename "$lender")
  rm -rf "$venv"
  "$lender/bin/python" -m venv "$venv"
  wheel=$(wheel_for "$venv/bin/python")
  purelib='import sysconfig; print(sysconfig.get_path("purelib"))'
  "$lender/bin/python" -c "$purelib" > "$("$venv/bin/python" -c "$purelib")/lender.pth"
  before=$("$venv/bin/python" -c "$version")
  "$venv/bin/python" "${pip[@]}" --ignore-installed --no-deps "$wheel"
  "$venv/bin/python" "${pip[@]}" "$wheel"
  after=$("$venv/bin/python" -c "$version")
  if [ "$before" != "$after" ]; then
    echo "installing the wheel changed TensorFlow from $before to $after" >&2
    return 1
  fi
  check "$venv"
  if "$venv/bin/python" -c 'import importlib.metadata as m, sys; sys.exit(m.version("keras") < "3")'; then
    # Keras 2 is installed next to Keras 3, without dependencies: its wheel requires `tensorflow`, not tensorflow-cpu.
    "$venv/bin/python" "${pip[@]}" --no-deps "tf_keras==${after%.*}.*"
    TF_USE_LEGACY_KERAS=1 check "$venv"
  fi
}

with_python() {
  local python=${1%@*} tensorflow=${1##*@} venv=$scratch/new wheel
  if ! command -v "$python" >/dev/null; then
    echo "SKIPPED: the wheel with TensorFlow $tensorflow: $python does not exist"
    return
  fi
  rm -rf "$venv"
  "$python" -m venv "$venv"
  wheel=$(wheel_for "$venv/bin/python")
  "$venv/bin/python" "${pip[@]}" "tensorflow-cpu==$tensorflow" "$wheel"
  check "$venv"
  env -i HOME="$scratch" PATH="$venv/bin:$scratch/bin" TF_CPP_MIN_LOG_LEVEL=2 \
    "$venv/bin/python" "$root/tools/quickstart.py"
  rm -rf "$venv"
}

# The only programs of the machine that the quick start may call.
rm -rf "$scratch/bin"
mkdir -p "$scratch/bin"
for program in bash env sh uname; do
  ln -s "$(command -v "$program")" "$scratch/bin/$program"
done

trials=()
for environment in "$@"; do
  case $environment in
    *@*) with_python "$environment" ;;
    *)
      (set -e; with_lender "$environment") &
      trials+=($!)
      ;;
  esac
done
for trial in "${trials[@]}"; do
  wait "$trial"  # a trial that fails ends the script
done
