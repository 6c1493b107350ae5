#!/usr/bin/env bash
# Makes a virtual environment and installs pinned requirements:  tools/venv.sh VENV REQUIREMENTS...
# PYTHON names the interpreter. STAMP names the file in VENV that records what was installed (.requirements). The script
# does nothing if VENV has exactly these requirements, and prints SKIPPED if the interpreter is newer than MAX_PYTHON.
set -euo pipefail

venv=$1
shift
python=${PYTHON:-python3}
stamp=$venv/${STAMP:-.requirements}

"$python" - <<'PY'
import sys
if not (3, 10) <= sys.version_info[:2] <= (3, 13):
    sys.exit(f"tf_sparse_ps needs Python 3.10 to 3.13, {sys.executable} is {sys.version.split()[0]}. Set PYTHON=...")
PY

if ! "$python" -c "import sys; sys.exit(sys.version_info[:2] > tuple(map(int, '${MAX_PYTHON:-3.99}'.split('.'))))"; then
  echo "SKIPPED: $venv: packages in $1 need Python $MAX_PYTHON or older, $python is $("$python" -V | cut -d' ' -f2)"
  exit 0
fi

wanted=$("$python" -c 'import sys; print(sys.version)' && cat "$@")
if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
  touch "$stamp"
  exit 0
fi

echo "venv: $venv from $*"
if ! "$venv/bin/python" -c "import sys; sys.exit(sys.version != '''$("$python" -c 'import sys; print(sys.version)')''')" 2>/dev/null; then
  rm -rf "$venv"
  "$python" -m venv "$venv"
fi
requirements=()
for file in "$@"; do requirements+=(-r "$file"); done
"$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-warn-script-location "${requirements[@]}"
printf '%s\n' "$wanted" > "$stamp"
echo "venv: $venv has $("$venv/bin/python" - <<'PY'
from importlib.metadata import PackageNotFoundError, version

packages = []
for name in ("tensorflow-cpu", "keras", "torch"):
    try:
        packages.append(f"{name} {version(name)}")
    except PackageNotFoundError:
        pass
print(", ".join(packages))
PY
)"
