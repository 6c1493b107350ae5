#!/usr/bin/env bash
# Builds Horovod with Gloo (no MPI, no CUDA) for the TensorFlow of a venv, and installs it there:
#   tools/horovod/build.sh [--if-built] VENV [WHEEL_FOLDER]
# Horovod 0.28.1 is the last release. It is older than TensorFlow 2.16, which has moved some headers. The script does
# not patch sources. It adds the missing folders to the compiler's path (include/ contains forwarding headers).
# WHEEL_FOLDER keeps the wheel, by TensorFlow and Python version, so that a new venv does not compile it again.
# With --if-built, the script compiles nothing. It installs an existing wheel, and removes a Horovod that it installed
# for another TensorFlow, because that Horovod cannot be loaded.
set -euo pipefail

if_built=
if [ "$1" = --if-built ]; then
  if_built=yes
  shift
fi

horovod=0.28.1
here=$(cd "$(dirname "$0")" && pwd)
venv=$(cd "$1" && pwd)
python=$venv/bin/python
wheels=${2:-build/horovod}

tensorflow=$("$python" -c 'from importlib.metadata import version; print(version("tensorflow-cpu"))')
tag=tf$tensorflow-$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
stamp=$venv/.horovod
if [ "$if_built" ]; then
  installed=$(cat "$stamp" 2>/dev/null || true)
  if [ "$installed" = "$tag" ]; then
    exit 0
  elif ! ls "$wheels/$tag"/horovod-*.whl >/dev/null 2>&1; then
    if [ "$installed" ]; then
      echo "horovod: removing the one in $1, which was built for $installed. Run make horovod to build it for $tag"
      flock "$venv/.lock" "$python" -m pip uninstall -qq --yes horovod
      rm "$stamp"
    fi
    exit 0
  fi
fi
mkdir -p "$wheels/$tag"
wheels=$(cd "$wheels/$tag" && pwd)

if ! ls "$wheels"/horovod-*.whl >/dev/null 2>&1; then
  echo "horovod: building $horovod for TensorFlow $tensorflow (about two minutes; log: $wheels/build.log)"
  start=$SECONDS
  # Horovod's setup.py needs setuptools < 70, and its CMakeLists.txt needs cmake < 4. Neither is installed in the venv.
  "$python" -m pip install -qq --disable-pip-version-check --target "$wheels/tools" --upgrade \
    'setuptools==69.5.1' 'wheel==0.45.1' 'packaging==25.0' 'cmake==3.31.10'
  include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tensorflow/include
  if [ ! -e "$include/tensorflow/compiler/xla/client/xla_builder.h" ]; then
    extra=$include/external/highwayhash:$include/external/farmhash_archive/src:$here/include
    export CPLUS_INCLUDE_PATH=$extra${CPLUS_INCLUDE_PATH:+:$CPLUS_INCLUDE_PATH}
  fi
  if ! env HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_PYTORCH=1 \
      HOROVOD_WITHOUT_MXNET=1 HOROVOD_CPU_OPERATIONS=GLOO HOROVOD_GPU= \
      MAKEFLAGS="${HOROVOD_MAKEFLAGS:--j$(nproc)}" PATH="$wheels/tools/bin:$venv/bin:$PATH" PYTHONPATH="$wheels/tools" \
      "$python" -m pip wheel --disable-pip-version-check --no-build-isolation --no-deps --no-cache-dir --no-binary horovod \
      --wheel-dir "$wheels" "horovod==$horovod" -v >"$wheels/build.log" 2>&1; then
    tail -n 40 "$wheels/build.log" >&2
    echo "horovod: the build failed. The whole log is $wheels/build.log" >&2
    exit 1
  fi
  rm -rf "$wheels/tools"
  echo "horovod: built in $((SECONDS - start)) s"
fi
exec 9>"$venv/.lock"
flock 9  # only one pip at a time may change VENV
# These are the packages that Horovod imports. Installed ones stay as they are.
"$python" -m pip install -qq --disable-pip-version-check cloudpickle packaging psutil pyyaml
"$python" -m pip install -qq --disable-pip-version-check --no-deps --force-reinstall "$wheels"/horovod-*.whl
if ! check=$("$python" -c 'import horovod.tensorflow as hvd; assert hvd.gloo_built(), "this Horovod has no Gloo"' 2>&1); then
  printf '%s\n' "$check" >&2
  exit 1
fi
echo "$tag" > "$stamp"
echo "horovod: $1 has Horovod $horovod with Gloo"
