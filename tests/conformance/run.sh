#!/usr/bin/env bash
# Runs tests/protocol against Shoal and against a real Triton, on the same repositories of Python models, and prints where they differ.
# What differs on purpose is in docs/reference/differences.md with its reason; anything else fails the run.
#
#   tests/conformance/run.sh [arguments for pytest, such as -k batching]
#
#   PEERS   scratch folder, kept for the next run (default: .peers); about 220 MB
#   PYTHON  a Python 3.10 to 3.12 for Triton's models (default: the first one found)
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/uv.sh
PEERS=${PEERS:-$PWD/.peers}
export PEERS
place=$PEERS/conformance

# The release of Triton in the wheel brings stubs for these Pythons, and numpy 1.26, which its models need, exists for them.
triton_python() {
  local name
  for name in ${PYTHON:-} .venv/bin/python python3 python3.12 python3.11 python3.10; do
    case "$(python_version "$name")" in
      3.10 | 3.11 | 3.12)
        command -v "$name"
        return
        ;;
    esac
  done
  fail "the Triton that Shoal is compared with needs a Python 3.10 to 3.12, and there is none here: PYTHON=python3.12 make conformance"
}

set_up() {
  local want stubs
  case "$(uname -sm)" in
    "Linux x86_64") ;;
    *) fail "the Triton that Shoal is compared with runs on Linux on x86_64 only" ;;
  esac
  want=$(cksum tests/conformance/requirements.txt tests/conformance/run.sh)
  [ "$want" != "$(cat "$place/.stamp" 2>/dev/null || true)" ] || return 0
  PY=$(triton_python)
  get_uv
  say "Setting up Triton in $place"
  uv venv --quiet --clear --python "$PY" "$place"
  uv pip install --quiet --python "$place/bin/python" --no-deps --require-hashes -r tests/conformance/requirements.txt
  for stubs in "$place"/lib/python3*/site-packages/pytriton/tritonserver; do :; done
  cp "$stubs/python_backend_stubs/$(python_version "$place/bin/python")/triton_python_backend_stub" "$stubs/backends/python/"
  chmod +x "$stubs/bin/tritonserver" "$stubs/backends/python/triton_python_backend_stub"
  printf '%s\n' "$want" >"$place/.stamp"
}

set_up
reports=$PEERS/reports
mkdir -p "$reports"
status=0
for target in triton shoal; do
  say "tests/protocol against $target"
  rm -f "$reports/$target.xml"
  .venv/bin/pytest tests/protocol --target="$target" --junitxml="$reports/$target.xml" -o junit_family=xunit1 -q -r fE --timeout 300 "$@" || status=1
done
.venv/bin/python tests/conformance/compare.py "$reports/triton.xml" "$reports/shoal.xml" || status=1
exit "$status"
