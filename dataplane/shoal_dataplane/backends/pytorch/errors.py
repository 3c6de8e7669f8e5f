"""What torch says when it fails, cut to what a caller can use."""

from __future__ import annotations

import re
from typing import Final

_MAX_MESSAGE: Final = 600
_INTERPRETER: Final = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception): ", re.MULTILINE)
_STACK: Final = re.compile(
    r"\n(?:Exception raised from |C\+\+ CapturedTraceback|Traceback of TorchScript|While executing )"
)


def error_text(error: BaseException) -> str:
    """Return the message on one line: without TorchScript's traceback before it and the C++ stack behind it (both name paths of the
    machine that the model was made on)."""
    text = str(error)
    if "TorchScript interpreter" in text:
        starts = [match.end() for match in _INTERPRETER.finditer(text)]
        text = text[starts[-1] :] if starts else text
    line = " ".join(_STACK.split(text, maxsplit=1)[0].split()) or type(error).__name__
    return line if len(line) <= _MAX_MESSAGE else line[:_MAX_MESSAGE] + "..."
