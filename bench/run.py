"""Run the benchmarks: all of them, or those named. `python -m bench.run [NAME ...] [-- OPTIONS]`, options go to each."""

from __future__ import annotations

import importlib
import sys

NAMES = ("door", "batching", "offered", "memory", "large_tensor", "real_models")


def main() -> int:
    arguments = sys.argv[1:]
    names, options = arguments, []
    if "--" in arguments:
        at = arguments.index("--")
        names, options = arguments[:at], arguments[at + 1 :]
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"unknown benchmark {', '.join(unknown)}: there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in names or NAMES:
        importlib.import_module(f"bench.{name}").main(options)
        print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
