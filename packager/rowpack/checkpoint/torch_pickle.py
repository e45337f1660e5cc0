"""Read the table of tensors out of a torch state dict's pickle without running it.

A pickle is a program that may call anything it can import. ``pickle.load`` is therefore not used at all:
this is an interpreter for the few opcodes a state dict needs, in which a global is only a pair of names and
the only calls are the three below. Nothing is imported, no attribute is set, and no object but tuples,
lists, dicts with text keys, numbers, texts and tensor descriptions can come into being.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rowpack_loaders.errors import RowpackError

STORAGE_DTYPES = {
    "DoubleStorage": ("F64", 8),
    "FloatStorage": ("F32", 4),
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "LongStorage": ("I64", 8),
    "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2),
    "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1),
}
"""Storage classes of module ``torch``: name of the data type and its size in bytes."""


@dataclass(frozen=True)
class Storage:
    """Name one storage of a torch file: entry ``data/<key>`` holding ``element_count`` elements."""

    key: str
    dtype: str
    element_count: int


@dataclass(frozen=True)
class PickledTensor:
    """Describe a tensor as a view of a storage; offset and strides count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class _Global:
    module: str
    name: str


class _Mark:
    """Stand on the stack where a MARK opcode put it."""


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"})
_TUPLE_LENGTHS = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def read_state_dict(content: bytes, where: str) -> dict[str, PickledTensor]:
    """Return name → tensor description of a pickled state dict.

    Raises ``RowpackError`` with code ``unsafe_pickle`` (asks for a global a state dict does not need),
    ``malformed_pickle`` (no valid pickle, or built from something else than opcodes of state dicts) or
    ``not_a_state_dict`` (valid, but not a flat table of tensors).
    """
    interpreter = _Interpreter(where)
    try:
        for opcode, argument, _ in pickletools.genops(content):
            interpreter.execute(opcode.name, argument)
    except (ValueError, IndexError, KeyError) as error:
        raise interpreter.malformed(f"{type(error).__name__}: {error}") from None
    if len(interpreter.stack) != 1:
        raise interpreter.malformed("a pickle without exactly one result")
    (result,) = interpreter.stack
    if not isinstance(result, dict):
        raise not_a_state_dict(where, type(result).__name__)
    for name, value in result.items():
        if not isinstance(value, PickledTensor):
            raise not_a_state_dict(where, f"{type(value).__name__} under key {name[:80]!r}")
    return result


def not_a_state_dict(where: str, found: str) -> RowpackError:
    """Make the error for a pickle whose content is not a flat table of tensors."""
    return RowpackError(
        "not_a_state_dict",
        "the torch file does not hold a plain state dict",
        where=where,
        found=found,
        expected="a dict from tensor name to tensor",
        remedy="Save it again with torch.save(model.state_dict(), …) or save_pretrained()",
    )


class _Interpreter:
    """Run the opcodes of one pickle on a stack of inert values."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._opcodes: dict[str, Callable[[Any], None]] = {
            "MARK": lambda _: self.stack.append(_Mark()),
            "EMPTY_DICT": lambda _: self.stack.append({}),
            "EMPTY_LIST": lambda _: self.stack.append([]),
            "TUPLE": lambda _: self.stack.append(tuple(self._pop_to_mark())),
            "BINPUT": self._put,
            "LONG_BINPUT": self._put,
            "MEMOIZE": lambda _: self._put(len(self._memo)),
            "BINGET": lambda index: self.stack.append(self._memo[index]),
            "LONG_BINGET": lambda index: self.stack.append(self._memo[index]),
            "GLOBAL": lambda pair: self._push_global(*pair.split(" ", 1)),
            "STACK_GLOBAL": lambda _: self._push_global(*self._pop(2)),
            "BINPERSID": lambda _: self.stack.append(self._storage(self.stack.pop())),
            "REDUCE": lambda _: self.stack.append(self._call(*self._pop(2))),
            "BUILD": lambda _: self._build(),
            "SETITEM": lambda _: self._set_items(self._pop(2)),
            "SETITEMS": lambda _: self._set_items(self._pop_to_mark()),
            "APPEND": lambda _: self._extend(self._pop(1)),
            "APPENDS": lambda _: self._extend(self._pop_to_mark()),
        }

    def execute(self, opcode: str, argument: Any) -> None:
        """Carry out one opcode; ``STOP``, ``PROTO`` and ``FRAME`` need nothing."""
        if opcode in self._opcodes:
            self._opcodes[opcode](argument)
        elif opcode in _LITERALS:
            self.stack.append(argument)
        elif opcode in _CONSTANTS:
            self.stack.append(_CONSTANTS[opcode])
        elif opcode in _TUPLE_LENGTHS:
            self.stack.append(tuple(self._pop(_TUPLE_LENGTHS[opcode])))
        elif opcode not in ("PROTO", "FRAME", "STOP"):
            raise self.malformed(f"opcode {opcode}, which no state dict needs")

    def malformed(self, found: str) -> RowpackError:
        """Make the error for a pickle that cannot be a state dict's."""
        return RowpackError(
            "malformed_pickle",
            "the torch file's table of tensors cannot be read",
            where=self.where,
            found=found,
            expected="the pickle of a state dict written by torch.save",
            remedy="Convert the checkpoint to safetensors where you trust it",
        )

    def _pop(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise self.malformed("an empty stack")
        values = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        if any(isinstance(value, _Mark) for value in values):
            raise self.malformed("a mark in the place of a value")
        return values

    def _pop_to_mark(self) -> list[Any]:
        values: list[Any] = []
        while self.stack:
            value = self.stack.pop()
            if isinstance(value, _Mark):
                values.reverse()
                return values
            values.append(value)
        raise self.malformed("no mark on the stack")

    def _put(self, index: int) -> None:
        self._memo[index] = self.stack[-1]

    def _push_global(self, module: Any, name: Any) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise self.malformed("a global without a name")
        known_storage = module == "torch" and name in STORAGE_DTYPES
        if not known_storage and (module, name) not in _CALLS:
            raise RowpackError(
                "unsafe_pickle",
                "the torch file asks to import something a state dict does not need; it was not imported",
                where=self.where,
                found=f"{module}.{name}"[:200],
                expected="tensors and their storages only",
                remedy="Do not load this file with plain torch.load; get the checkpoint as safetensors",
            )
        self.stack.append(_Global(module, name))

    def _storage(self, persistent_id: Any) -> Storage:
        match persistent_id:
            case ("storage", _Global("torch", name), str(key), str(), count) if name in STORAGE_DTYPES:
                return Storage(key, STORAGE_DTYPES[name][0], self._count(count))
        raise self.malformed("a reference that is not a tensor storage")

    def _call(self, function: Any, arguments: Any) -> Any:
        if not isinstance(function, _Global) or (function.module, function.name) not in _CALLS:
            raise self.malformed("a call of something that is not a function")
        if not isinstance(arguments, tuple):
            raise self.malformed("a call without a tuple of arguments")
        return _CALLS[function.module, function.name](self, arguments)

    def _rebuild_tensor(self, arguments: tuple[Any, ...]) -> PickledTensor:
        match arguments:
            case (Storage() as storage, offset, tuple(shape), tuple(strides), bool(), dict(), *_):
                if len(shape) != len(strides) or len(shape) > 8:
                    raise self.malformed("a tensor whose shape and strides do not belong together")
                return PickledTensor(
                    storage,
                    self._count(offset),
                    tuple(map(self._count, shape)),
                    tuple(map(self._count, strides)),
                )
        raise self.malformed("arguments that do not describe a tensor")

    def _rebuild_parameter(self, arguments: tuple[Any, ...]) -> PickledTensor:
        if arguments and isinstance(arguments[0], PickledTensor):
            return arguments[0]
        raise self.malformed("a parameter without a tensor")

    def _ordered_dict(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        if arguments:
            raise self.malformed("an OrderedDict made with arguments")
        return {}

    def _build(self) -> None:
        # torch hangs its `_metadata` (versions of modules) on the dict as an attribute; nobody reads it.
        target, _state = self._pop(2)
        if not isinstance(target, dict):
            raise self.malformed("attributes for something that is not a dict")
        self.stack.append(target)

    def _set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        # Keys are text only: hashing a nest of shared tuples could take for ever.
        if not isinstance(target, dict) or len(items) % 2 or not all(isinstance(key, str) for key in items[::2]):
            raise not_a_state_dict(self.where, "a dict whose keys are not text")
        target.update(zip(items[::2], items[1::2], strict=True))

    def _extend(self, items: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise self.malformed("items for something that is not a list")
        self.stack[-1].extend(items)

    def _count(self, value: Any) -> int:
        if type(value) is not int or not 0 <= value < 2**63:
            raise self.malformed("a size that is not a whole number from 0 to 2^63")
        return value


_CALLS: dict[tuple[str, str], Callable[[_Interpreter, tuple[Any, ...]], Any]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _Interpreter._rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _Interpreter._rebuild_parameter,
    ("collections", "OrderedDict"): _Interpreter._ordered_dict,
}
