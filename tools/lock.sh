#!/usr/bin/env bash
# Writes requirements/*.txt anew from pyproject.toml: every version pinned, every file by its hash, no address of an index.
# What is locked already stays at its version where pyproject.toml still allows it; UPGRADE=1 takes the newest of everything.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/uv.sh
get_uv

# Every environment that tools/bootstrap.sh accepts meets the markers that [tool.uv] environments in pyproject.toml puts on each line:
# they say nothing there, so a line becomes "name==version", and those of CUDA's parts "name==version ; sys_platform == 'linux'".
plain() {
  local linux="\(platform_machine == 'aarch64' and sys_platform == 'linux'\) or \(platform_machine == 'x86_64' and sys_platform == 'linux'\)"
  sed -i.bak -E \
    -e "s/python_full_version < '3\.15' and //g" \
    -e "s/ ; \(platform_machine == 'arm64' and sys_platform == 'darwin'\) or $linux//" \
    -e "s/ ; $linux/ ; sys_platform == 'linux'/" "$1"
  rm -f "$1.bak"
}

compile() {
  uv pip compile --universal --python-version 3.11 --fork-strategy fewest --generate-hashes --no-emit-index-url \
    --no-emit-find-links --no-header --no-annotate --quiet ${UPGRADE:+--upgrade} "$@"
}

echo "Locking requirements/dev.txt"
compile pyproject.toml --extra quickstart --extra test --extra lint --group build --output-file requirements/dev.txt
plain requirements/dev.txt
# The smaller set is the larger one's, version for version.
echo "Locking requirements/runtime.txt"
compile pyproject.toml --extra quickstart --group build --constraints requirements/dev.txt --output-file requirements/runtime.txt
plain requirements/runtime.txt
# uv locks itself: its own pin is the one thing to edit by hand.
echo "Locking requirements/uv.txt"
compile requirements/uv.in --output-file requirements/uv.txt
plain requirements/uv.txt
if grep -nE '://' requirements/*.txt; then
  echo "lock: an address got into a lock file." >&2
  exit 1
fi
