#!/usr/bin/env bash
# Starts the real tritonserver in the foreground, with the flags given. run.sh sets it up.
#
#   PEERS          the scratch folder that run.sh fills (default: .peers in the checkout)
#   TRITON_PYTHON  the virtual environment whose packages Python models see (default: the one in PEERS)
#   TRITON         the folder that holds bin/, backends/ and python_backend_stubs/ (default: the one in that environment)
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
TRITON_PYTHON=${TRITON_PYTHON:-${PEERS:-$root/.peers}/conformance}
if [ -z "${TRITON:-}" ]; then
  for TRITON in "$TRITON_PYTHON"/lib/python3*/site-packages/pytriton/tritonserver; do :; done
fi
[ -x "$TRITON/bin/tritonserver" ] || {
  echo "no tritonserver in $TRITON: run 'make conformance', which sets it up" >&2
  exit 2
}
# The stub finds its packages by the python3 on the PATH, and by nothing else.
export PATH=$TRITON_PYTHON/bin:$PATH
minor=$("$TRITON_PYTHON/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
base=$("$TRITON_PYTHON/bin/python" -c 'import sys; print(sys.base_prefix)')
if [ -e "$base/lib/libpython$minor.so.1.0" ]; then
  export LD_LIBRARY_PATH=$base/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
exec "$TRITON/bin/tritonserver" --backend-directory="$TRITON/backends" --cache-directory="$TRITON/caches" \
  --allow-gpu-metrics=false --exit-on-error=false "$@"
