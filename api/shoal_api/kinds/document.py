"""YAML text to plain values, with the line of every field. Strict where Kubernetes is: no duplicate keys, keys are strings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from shoal_api.kinds.problems import FieldPath, ManifestError, Origin

MAX_BYTES = 1 << 20
"""Of one file. An object in a cluster cannot be larger either (etcd's limit is 1.5 MiB)."""
MAX_FIELDS = 100_000
"""Of one document, anchors followed: a few lines of nested anchors can stand for billions of fields."""
MAX_DEPTH = 100
"""Of fields in fields; an anchor that holds itself has no end."""


class Document(NamedTuple):
    """One YAML document that is a mapping."""

    values: dict[str, Any]
    origin: Origin


def read_documents(file: Path) -> Iterator[Document]:
    """Yield the documents of a YAML (or JSON) file; empty documents are passed over.

    Raises ManifestError with the line for text that is no YAML, a document that is no mapping, duplicate keys and keys that are
    no strings, and for a file that cannot be read or is larger than MAX_BYTES.
    """
    text = _read(file)
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(text)
        document = 0
        while loader.check_node():
            document += 1
            node = loader.get_node()
            if node is None or node.tag == "tag:yaml.org,2002:null":
                continue
            if not isinstance(node, yaml.MappingNode):
                raise _at(
                    file, node, f"document {document}: expected a mapping with apiVersion and kind, got {_kind(node)}"
                )
            origin = Origin(file, document, _lines(file, node))
            yield Document(loader.construct_document(node), origin)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}" if mark else str(file)
        raise ManifestError([f"{where}: not valid YAML: {error.problem or error.context}"]) from error
    except yaml.YAMLError as error:
        raise ManifestError([f"{file}: not valid YAML: {error}"]) from error
    except RecursionError:
        raise ManifestError([f"{file}: nested too deeply"]) from None
    except ValueError as error:
        if isinstance(error, ManifestError):
            raise
        raise ManifestError([f"{file}: a value that cannot be read: {error}"]) from error
    finally:
        if loader is not None:
            loader.dispose()


def _read(file: Path) -> str:
    try:
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise ManifestError([f"{file}: {size} bytes; a manifest file has at most {MAX_BYTES}"])
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ManifestError([f"{file}: cannot be read: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise ManifestError([f"{file}: not UTF-8 text (byte {error.start})"]) from error


def _lines(file: Path, root: yaml.MappingNode) -> dict[FieldPath, int]:
    """Map every field to its line. Anchors are followed, so the number of fields is bounded here."""
    lines: dict[FieldPath, int] = {(): root.start_mark.line + 1}
    todo: list[tuple[FieldPath, yaml.Node]] = [((), root)]
    while todo:
        path, node = todo.pop()
        if len(lines) > MAX_FIELDS:
            raise _at(file, root, f"more than {MAX_FIELDS} fields in one document")
        if len(path) > MAX_DEPTH:
            raise _at(file, root, f"fields nested more than {MAX_DEPTH} deep")
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if key.tag == "tag:yaml.org,2002:merge":
                    todo.extend(
                        (path, part) for part in (value.value if isinstance(value, yaml.SequenceNode) else [value])
                    )
                    lines[(*path, "<<", len(lines))] = key.start_mark.line + 1
                    continue
                if key.tag != "tag:yaml.org,2002:str":
                    raise _at(file, key, f"a key must be a string, got {key.value!r}; put it in quotes")
                if key.value in seen:
                    raise _at(file, key, f"duplicate key '{key.value}'")
                seen.add(key.value)
                lines.setdefault((*path, key.value), key.start_mark.line + 1)
                todo.append(((*path, key.value), value))
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                lines.setdefault((*path, index), value.start_mark.line + 1)
                todo.append(((*path, index), value))
    return lines


def _at(file: Path, node: yaml.Node, message: str) -> ManifestError:
    return ManifestError([f"{file}:{node.start_mark.line + 1}: {message}"])


def _kind(node: yaml.Node) -> str:
    return "a list" if isinstance(node, yaml.SequenceNode) else "a single value"
