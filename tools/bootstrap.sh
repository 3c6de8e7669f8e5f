#!/usr/bin/env bash
# Makes the checkout's own environment, .venv, and keeps it as requirements/ and pyproject.toml say. Does nothing where it is so already.
#
#   tools/bootstrap.sh runtime    what `make quickstart` runs
#   tools/bootstrap.sh dev        that, and what tests and checks it; takes the place of runtime, never the other way round
#
#   PYTHON        the Python to build on; otherwise python3, or a newer name of it on the PATH
#   TORCH_INDEX   an index, or a folder of wheels, to take torch from, of the version pinned here (a CPU-only build, say); then
#                 CUDA's packages stay away
#
# Everything but such a torch is checked against the hashes in requirements/. uv keeps its downloads in the user's own cache and links
# them into place, so a second environment takes seconds. PIP_* settings for the index and the certificates hold for uv too.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/uv.sh

STAMP=.venv/.shoal
profile=${1:-runtime}
case "$profile" in runtime | dev) ;; *) fail "no set of packages is named '$profile'; there are runtime and dev." ;; esac

stamped() { sed -n "s/^$1=//p" "$STAMP" 2>/dev/null || true; }
digest() { cat "$@" | cksum; }
version_of_torch() { sed -n 's/^torch==\([^ ]*\).*/\1/p' "requirements/$profile.txt"; }

# What the environment should be, as the stamp in it will say.
plan() {
  local pinned
  [ "$(stamped profile)" != dev ] || profile=dev
  python=$(stamped python)
  [ -z "${PYTHON:-}" ] || python=$(python_version "$PYTHON")
  torch=$(stamped torch)
  pinned=$(version_of_torch)
  [ -z "${TORCH_INDEX:-}" ] || torch="index $pinned"
  torch=${torch:-lock}
  case "$torch" in
    lock | "index $pinned") ;;
    *) fail "torch is now pinned at $pinned, and .venv holds one from TORCH_INDEX: set TORCH_INDEX again, or 'make clean' for the one in the lock." ;;
  esac
  packages=$(digest "requirements/$profile.txt" requirements/uv.txt tools/bootstrap.sh tools/uv.sh)
  project=$(digest pyproject.toml)
}

same() {
  local name
  [ -x .venv/bin/python ] || return 1
  for name in "$@"; do
    [ "$(stamped "$name")" = "${!name}" ] || return 1
  done
}

write_stamp() {
  local name
  for name in "$@"; do printf '%s=%s\n' "$name" "${!name}"; done >"$STAMP.new"
  mv "$STAMP.new" "$STAMP"
}

make_venv() {
  find_python
  python=$(python_version "$PY")
  say "Making .venv with Python $python"
  uv venv --quiet --clear --python "$(command -v "$PY")" .venv
}

# The lock without torch and what only its CUDA build needs.
without_cuda() {
  awk '/^[a-z0-9]/ { skip = /^(torch|triton|cuda-[a-z-]+|nvidia-[a-z0-9-]+)==/ } !skip' "requirements/$profile.txt"
}

install_packages() {
  if [ "$torch" = lock ]; then
    say "Installing requirements/$profile.txt (torch with CUDA is a download of 3 GB the first time; TORCH_INDEX can name a smaller build)"
    uv pip sync --python .venv/bin/python --require-hashes "requirements/$profile.txt"
    return
  fi
  say "Installing requirements/$profile.txt without torch and CUDA"
  without_cuda >.venv/requirements.txt
  uv pip install --python .venv/bin/python --no-deps --require-hashes -r .venv/requirements.txt
  if [ -n "${TORCH_INDEX:-}" ]; then
    say "Installing torch $(version_of_torch) from TORCH_INDEX"
    if [ -d "$TORCH_INDEX" ]; then
      uv pip install --python .venv/bin/python --no-deps --no-index --find-links "$TORCH_INDEX" "torch==$(version_of_torch)"
    else
      uv pip install --python .venv/bin/python --no-deps --default-index "$TORCH_INDEX" "torch==$(version_of_torch)"
    fi
  fi
}

install_project() {
  say "Installing this checkout into .venv, editable"
  uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --reinstall-package shoal --editable .
}

place=$PWD
plan
if same place python torch profile packages project; then exit 0; fi
# One at a time: a second make in the same checkout waits here, and then finds the work done.
mkdir -p .cache
if command -v flock >/dev/null; then
  exec 9>.cache/bootstrap.lock
  flock 9
  plan
  if same place python torch profile packages project; then exit 0; fi
fi
get_uv
if ! same place python torch profile packages; then
  have=$(python_version .venv/bin/python)
  if ! python_fits "$have" || [ "${python:-$have}" != "$have" ] || [ "$(stamped place)" != "${place}" ] || [ -n "${TORCH_INDEX:-}" ]; then
    [ "$torch" = lock ] || [ -n "${TORCH_INDEX:-}" ] || fail ".venv must be made anew, and its torch came from TORCH_INDEX: set TORCH_INDEX again, or 'make clean' for the one in the lock."
    make_venv
  fi
  write_stamp place python torch profile
  install_packages
fi
install_project
write_stamp place python torch profile packages project
say "Ready: .venv ($profile)"
