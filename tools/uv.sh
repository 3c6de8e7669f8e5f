# Sourced by the scripts beside it: brings the pinned uv, and lets it see the world that pip sees here.
# Wants the current folder to be the root of the checkout. Bash 3.2, which macOS has, is enough.

TOOLS=.cache/tools # a virtual environment that holds uv and nothing else

say() { printf '==> %s\n' "$*"; }
fail() {
  printf 'bootstrap: %s\n' "$*" >&2
  exit 1
}

# Prints "3.11" and the like; nothing where the command is no Python.
python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null || true; }

python_fits() {
  case "$1" in
    3.11 | 3.12 | 3.13 | 3.14) return 0 ;;
    *) return 1 ;;
  esac
}

# Sets PY to a Python that fits: $PYTHON where it is set, else python3, else the first of its newer names.
find_python() {
  local name version found="there is no python3 here"
  if [ -n "${PYTHON:-}" ]; then
    version=$(python_version "$PYTHON")
    [ -n "$version" ] || fail "PYTHON=$PYTHON does not run; name a Python 3.11 to 3.14."
    python_fits "$version" || fail "Shoal needs Python 3.11 to 3.14, and PYTHON=$PYTHON is Python $version."
    PY=$PYTHON
    return
  fi
  for name in python3 python3.11 python3.12 python3.13 python3.14; do
    version=$(python_version "$name")
    if python_fits "$version"; then
      PY=$name
      return
    fi
    [ "$name" != python3 ] || [ -z "$version" ] || found="python3 here is Python $version"
  done
  fail "Shoal needs Python 3.11 to 3.14, and $found. Install one, or name it: make PYTHON=python3.12 ..."
}

# The value of a pip setting, from the environment or pip's own files: what a user told pip holds for uv as well.
pip_setting() {
  local variable
  variable=PIP_$(printf %s "$1" | tr 'a-z-' 'A-Z_')
  if [ -n "${!variable:-}" ]; then
    printf %s "${!variable}"
  else
    "$TOOLS/bin/python" -m pip config get "global.$1" 2>/dev/null </dev/null || true
  fi
}

uv() { "$TOOLS/bin/uv" "$@" </dev/null; }

# Makes the tool environment where it is missing or holds another uv, and sets what uv reads from the environment.
get_uv() {
  local want have="" value
  want=$(cksum requirements/uv.txt 2>/dev/null || echo none)
  [ ! -x "$TOOLS/bin/uv" ] || have=$(cat "$TOOLS/stamp" 2>/dev/null || true)
  if [ "$want" != "$have" ]; then
    [ -n "${PY:-}" ] || find_python
    say "Installing uv, the installer, into $TOOLS"
    rm -rf "$TOOLS"
    mkdir -p "${TOOLS%/*}"
    "$PY" -m venv "$TOOLS" </dev/null || fail "$PY cannot make a virtual environment; on Debian and Ubuntu the package python3-venv is missing."
    "$TOOLS/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
      -r requirements/uv.txt </dev/null || fail "uv could not be installed; is a package index within reach?"
    printf '%s\n' "$want" >"$TOOLS/stamp"
  fi
  export UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1
  unset UV_REQUIRE_HASHES UV_SYSTEM_PYTHON
  if [ -z "${SSL_CERT_FILE:-}" ]; then
    value=$(pip_setting cert)
    [ -z "$value" ] || export SSL_CERT_FILE="$value"
  fi
  if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
    value=$(pip_setting index-url)
    [ -z "$value" ] || export UV_DEFAULT_INDEX="$value"
  fi
  if [ -z "${UV_HTTP_TIMEOUT:-}" ]; then
    value=$(pip_setting default-timeout)
    export UV_HTTP_TIMEOUT="${value:-120}"
  fi
}
