#!/usr/bin/env bash
# Builds //:core and //:ops_lib and runs the C++ tests with Bazel, without a network:  tools/bazel/check.sh VENV
# TensorFlow's headers are those of VENV. Bazel is the package of Debian. If it is missing, the script installs it as
# root, and prints SKIPPED as another user.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
python=$(cd "$1" && pwd)/bin/python
platforms=/usr/share/bazel/tools/platforms
cd "$root"

if ! command -v bazel >/dev/null || [ ! -d "$platforms" ]; then
  install=(apt-get install -y -qq --no-install-recommends bazel-bootstrap bazel-platforms)
  export DEBIAN_FRONTEND=noninteractive
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "SKIPPED: the Bazel build: bazel is not installed (Debian: ${install[*]: -2})"
    exit 0
  fi
  echo "bazel: installing the package of Debian"
  mkdir -p build
  if ! { "${install[@]}" || { apt-get update -qq && "${install[@]}"; }; } >build/bazel-install.log 2>&1; then
    echo "SKIPPED: the Bazel build: apt could not install ${install[*]: -2}: $(tail -n 1 build/bazel-install.log)"
    exit 0
  fi
fi

googletest=$("$python" tools/googletest.py)
case $googletest in
  SKIPPED*) echo "$googletest" ; exit 0 ;;
esac
tensorflow=$("$python" -c 'import sys; sys.path.insert(0, "tools"); import native; print(native.require_tensorflow())')

# With --batch, no server stays. WORKSPACE overrides or stubs the repositories that Bazel would download.
bazel() {
  local command=$1
  shift
  command bazel --batch --output_user_root="$root/build/bazel" "$command" --noshow_progress --color=no --ui_event_filters=-info \
    --experimental_convenience_symlinks=ignore --spawn_strategy=local --jobs="${MAX_JOBS:-$(nproc)}" --compilation_mode=opt \
    --override_repository=platforms="$platforms" --repo_env=TENSORFLOW_DIR="$tensorflow" --repo_env=GTEST_DIR="$googletest" "$@"
}

bazel build //:core //:ops_lib
bazel test //:all --copt=-DTFSPS_FAULT_POINTS --test_output=errors --local_test_jobs=1
echo "bazel: //:core, //:ops_lib and the C++ tests build and pass"
