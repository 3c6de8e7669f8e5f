"""config.pbtxt: a ModelConfig in protobuf's text format, read with errors that a person can act on.

The grammar is the text format's (protobuf.dev/reference/protobuf/textformat-spec), without extensions and Any. It is parsed here
and not by protobuf's own reader because that one stops at "couldn't parse integer": whoever edits a config.pbtxt wants the file,
the line, the column, the field by its path, and what was probably meant.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from shoal_api.protocol import model_config_pb2 as mc
from shoal_dataplane.core.errors import invalid
from shoal_dataplane.repository.schema import descriptor_of, enum_type, enum_values, is_map, message_type, near

MAX_CONFIG_BYTES: Final = 16 << 20
"""A larger file is no configuration."""

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|\#[^\n]*)+)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<number>0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<mark>[{}<>\[\]:,;-])""",
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\(?:[xX]([0-9a-fA-F]{1,2})|([0-7]{1,3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_PLAIN_ESCAPES = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
    b"\\": b"\\", b"'": b"'", b'"': b'"', b"?": b"?",
}  # fmt: skip

_INTEGERS: Final[dict[int, tuple[str, int, int]]] = {
    FieldDescriptor.TYPE_INT32: ("int32", -(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: ("int64", -(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT32: ("uint32", 0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: ("uint64", 0, (1 << 64) - 1),
}
_FLOATS = (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE)
_TRUE, _FALSE = ("true", "True", "t", "1"), ("false", "False", "f", "0")
_CLOSING = {"{": "}", "<": ">"}


def read_config(path: Path) -> mc.ModelConfig:
    """Read one config.pbtxt. Raises ServingError(INVALID_ARGUMENT): the file cannot be read, or what is wrong with it and where."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise invalid(f"failed to open text file for read {path}: {error.strerror}") from None
    if len(data) > MAX_CONFIG_BYTES:
        raise invalid(f"failed to read text proto from {path}: the file is larger than {MAX_CONFIG_BYTES >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise invalid(f"failed to read text proto from {path}:{line}: the file is not UTF-8 text") from None
    return parse_config(text, str(path))


def parse_config(text: str, source: str = "config.pbtxt") -> mc.ModelConfig:
    """Parse a ModelConfig in text format; `source` names the text in errors.

    Raises ServingError(INVALID_ARGUMENT) with "<source>:<line>:<column>", the field's path and what was expected there.
    """
    config = mc.ModelConfig()
    _Parser(text, source).parse(config)
    return config


class _Token(NamedTuple):
    kind: str  # a group of _TOKEN, or "end"
    text: str
    offset: int

    def __str__(self) -> str:
        return "the end of the file" if self.kind == "end" else f"'{self.text}'"


class _Parser:
    """Recursive descent; the depth is that of the schema, which does not recur."""

    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source
        self._offset = 0
        self._path: list[str] = []
        self._next = self._scan()

    def parse(self, config: mc.ModelConfig) -> None:
        self._fields(config, "")

    # -- tokens

    def _scan(self) -> _Token:
        while self._offset < len(self._text):
            match = _TOKEN.match(self._text, self._offset)
            if match is None:
                character = self._text[self._offset]
                problem = (
                    "a string without its closing quote"
                    if character in "\"'"
                    else f"unexpected character {character!r}"
                )
                self._fail(problem, self._offset)
            start, self._offset = match.span()
            assert match.lastgroup is not None
            if match.lastgroup != "space":
                return _Token(match.lastgroup, match.group(), start)
        return _Token("end", "", len(self._text))

    def _take(self) -> _Token:
        token = self._next
        self._next = self._scan()
        return token

    def _try(self, *marks: str) -> str:
        """Take the next token if it is one of `marks`; "" otherwise."""
        if self._next.kind == "mark" and self._next.text in marks:
            return self._take().text
        return ""

    def _fail(self, problem: str, offset: int) -> NoReturn:
        line = self._text.count("\n", 0, offset) + 1
        column = offset - self._text.rfind("\n", 0, offset)
        raise invalid(f"failed to read text proto from {self._source}:{line}:{column}: {problem}")

    def _expect(self, what: str) -> NoReturn:
        place = f" in field '{self._here()}'" if self._path else ""
        self._fail(f"expected {what}{place}, found {self._next}", self._next.offset)

    def _here(self) -> str:
        return ".".join(self._path)

    # -- messages

    def _fields(self, message: Message, closing: str) -> None:
        """Read fields up to the mark `closing` ("": the end of the text)."""
        given: dict[str, str] = {}  # the singular field, or its oneof, by the field that was given
        while not (self._try(closing) if closing else self._next.kind == "end"):
            if self._next.kind != "name":
                self._expect("a field name" + (f" or '{closing}'" if closing else ""))
            self._field(message, self._take(), given)
            self._try(",", ";")

    def _field(self, message: Message, name: _Token, given: dict[str, str]) -> None:
        descriptor = descriptor_of(message)
        field = descriptor.fields_by_name.get(name.text)
        if field is None:
            owner = f"field '{self._here()}' ({descriptor.name})" if self._path else descriptor.name
            self._fail(f"{owner} has no field '{name.text}'{near(name.text, descriptor.fields_by_name)}", name.offset)
        self._path.append(name.text)
        if not field.is_repeated:
            self._check_single(field, name, given)
        if field.message_type is not None:
            self._try(":")  # a colon before a message is optional
        elif not self._try(":"):
            self._expect("':'")
        if self._next.kind == "mark" and self._next.text == "[":
            self._list(message, field)
        else:
            self._value(message, field)
        self._path.pop()

    def _check_single(self, field: FieldDescriptor, name: _Token, given: dict[str, str]) -> None:
        slot = field.containing_oneof.name if field.containing_oneof is not None else field.name
        other = given.get(slot)
        path = self._here()
        if other == field.name:
            self._fail(f"field '{path}' is given more than once", name.offset)
        if other is not None:
            self._fail(f"field '{path}' is given beside '{other}': only one of them may be set", name.offset)
        given[slot] = field.name

    def _list(self, message: Message, field: FieldDescriptor) -> None:
        start = self._take()
        if not field.is_repeated:
            self._fail(f"field '{self._here()}' takes one value, not a list", start.offset)
        if self._try("]"):
            return
        while True:
            self._value(message, field)
            if self._try("]"):
                return
            if not self._try(","):
                self._expect("',' or ']'")

    def _value(self, message: Message, field: FieldDescriptor) -> None:
        if field.message_type is None:
            value = self._scalar(field)
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
        elif is_map(field):
            self._map_entry(getattr(message, field.name), field)
        else:
            holder = getattr(message, field.name)
            if field.is_repeated:
                self._path[-1] = f"{field.name}[{len(holder)}]"
                holder = holder.add()
            else:
                holder.SetInParent()
            self._message(holder)

    def _message(self, message: Message) -> None:
        opening = self._try("{", "<")
        if not opening:
            self._expect(f"'{{' (the field is a {message.DESCRIPTOR.name})")
        self._fields(message, _CLOSING[opening])

    def _map_entry(self, container: Any, field: FieldDescriptor) -> None:
        entry: Any = message_factory.GetMessageClass(message_type(field))()
        self._message(entry)
        if message_type(field).fields_by_name["value"].message_type is None:
            container[entry.key] = entry.value
        else:
            container[entry.key].CopyFrom(entry.value)

    # -- values

    def _scalar(self, field: FieldDescriptor) -> str | int | float | bool:
        offset = self._next.offset
        if field.type == FieldDescriptor.TYPE_STRING:
            return self._string()
        negative = bool(self._try("-"))
        if self._next.kind not in ("name", "number"):
            self._expect(_expected(field))
        text = self._take().text
        shown = f"-{text}" if negative else text
        value: str | int | float | bool | None
        if field.type in _INTEGERS:
            value = self._integer(field, text, negative, offset)
        elif field.type in _FLOATS:
            value = _float(text, negative)
        elif field.type == FieldDescriptor.TYPE_ENUM:
            value = self._enum(field, shown, offset)
        else:
            value = None if negative else True if text in _TRUE else False if text in _FALSE else None
        if value is None:
            self._fail(f"field '{self._here()}': expected {_expected(field)}, found '{shown}'", offset)
        return value

    def _integer(self, field: FieldDescriptor, text: str, negative: bool, offset: int) -> int | None:
        name, least, most = _INTEGERS[field.type]
        if re.fullmatch(r"0[0-7]+", text):
            value = int(text, 8)
        elif re.fullmatch(r"0[xX][0-9a-fA-F]+", text):
            value = int(text, 16)
        elif re.fullmatch(r"0|[1-9][0-9]{0,30}", text):
            value = int(text)
        else:
            return None
        value = -value if negative else value
        if not least <= value <= most:
            self._fail(f"field '{self._here()}': {value} is out of range for {name} ({least} to {most})", offset)
        return value

    def _enum(self, field: FieldDescriptor, text: str, offset: int) -> int:
        values = enum_values(field)
        number = values.get(text)
        if number is None and re.fullmatch(r"-?[0-9]{1,9}", text) and int(text) in values.values():
            number = int(text)
        if number is None:
            hint = near(text.upper(), values) or f"; expected one of {', '.join(values)}"
            self._fail(f"field '{self._here()}': '{text}' is not a value of {enum_type(field).name}{hint}", offset)
        return number

    def _string(self) -> str:
        if self._next.kind != "string":
            self._expect("a string in quotes")
        offset = self._next.offset
        data = b""
        while self._next.kind == "string":  # adjacent literals are one string
            data += self._unescape(self._take())
        try:
            return data.decode()
        except UnicodeDecodeError:
            self._fail(f"field '{self._here()}': the string is not UTF-8", offset)

    def _unescape(self, token: _Token) -> bytes:
        def replace(match: re.Match[bytes]) -> bytes:
            hexadecimal, octal, short, long, plain = match.groups()
            if plain is not None:
                if plain not in _PLAIN_ESCAPES:
                    self._fail(f"unknown escape '\\{plain.decode(errors='replace')}' in a string", token.offset)
                return _PLAIN_ESCAPES[plain]
            if hexadecimal is not None or octal is not None:
                return bytes([int(hexadecimal or octal, 16 if hexadecimal else 8) & 0xFF])
            code = int(short or long, 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                self._fail(f"U+{code:04X} in a string is no character", token.offset)
            return chr(code).encode()

        return _ESCAPE.sub(replace, token.text[1:-1].encode())


def _float(text: str, negative: bool) -> float | None:
    word = text.lower()
    if word in ("inf", "infinity", "nan"):
        value = float(word)
    elif re.fullmatch(r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?f?", word):
        value = float(word.rstrip("f"))
    else:
        return None
    return -value if negative else value


def _expected(field: FieldDescriptor) -> str:
    if field.type in _INTEGERS:
        return f"a whole number ({_INTEGERS[field.type][0]})"
    if field.type in _FLOATS:
        return "a number"
    if field.type == FieldDescriptor.TYPE_ENUM:
        return f"a value of {enum_type(field).name}"
    return "true or false"
