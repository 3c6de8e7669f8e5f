#!/usr/bin/env bash
# Starts the real tritonserver in the foreground, with the flags given. Set up by run.sh.
#
#   PEERS          the scratch folder that run.sh fills (default: .peers in the checkout)
#   TRITON         the folder that has bin/, backends/ and python_backend_stubs/ (default: the one in PEERS)
#   TRITON_PYTHON  the virtual environment whose packages Python models see (default: the one in PEERS)
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
PEERS=${PEERS:-$root/.peers}
TRITON=${TRITON:-$PEERS/ptwheel/pytriton/tritonserver}
TRITON_PYTHON=${TRITON_PYTHON:-$PEERS/triton}
[ -x "$TRITON/bin/tritonserver" ] || {
  echo "no tritonserver in $TRITON: run 'make conformance', which sets it up" >&2
  exit 2
}
# The stub finds its packages by the python3 on the PATH, and nothing else.
export PATH=$TRITON_PYTHON/bin:$PATH
base=$("$TRITON_PYTHON/bin/python" -c 'import sys; print(sys.base_prefix)')
minor=$("$TRITON_PYTHON/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ -e "$base/lib/libpython$minor.so.1.0" ]; then export LD_LIBRARY_PATH=$base/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}; fi
exec "$TRITON/bin/tritonserver" --backend-directory="$TRITON/backends" --cache-directory="$TRITON/caches" \
  --allow-gpu-metrics=false --exit-on-error=false "$@"
