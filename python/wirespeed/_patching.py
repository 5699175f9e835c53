"""Give unchanged programs that import ``websockets`` connections of ours.

Where the package is installed, the modules of its asyncio and its blocking API are replaced; the others stay, with the
protocol without I/O, the legacy API and trio. Where it is not, the drop-in takes its name.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import threading
from types import ModuleType
from typing import Any

__all__ = ["patch", "unpatch"]

_DROP_IN = "wirespeed.compat.websockets"

# What is replaced.
_APIS = (
    "asyncio.client",
    "asyncio.connection",
    "asyncio.router",
    "asyncio.server",
    "sync.client",
    "sync.connection",
    "sync.router",
    "sync.server",
)

_MISSING = object()
_lock = threading.Lock()

# What unpatch puts back: attributes of modules, and entries of sys.modules.
_attributes: list[tuple[ModuleType, str, Any]] = []
_modules: list[tuple[str, Any]] = []


def patch() -> None:
    """Make ``import websockets`` give connections of wirespeed, in the whole process.

    Call it before other modules are imported: names and modules that they have taken from ``websockets`` by then stay
    what they are, and go on working. Exceptions of ``websockets`` catch those of wirespeed from here on. A second call
    does nothing. If it raises, nothing is changed.

    Raises:
        RuntimeError: The installed release of ``websockets`` is too old.
    """
    with _lock:
        if _attributes or _modules:
            return
        installed = importlib.import_module(f"{_DROP_IN}._installed")
        try:
            if installed.real is not None:
                _replace_modules(installed)
            elif _is_installed():
                raise RuntimeError(f"wirespeed.patch() needs websockets {installed.MINIMUM} or newer, or none")
            else:
                _take_name()
        except BaseException:
            # One half of a program would have connections of the one library, the other of the other.
            _put_back()
            raise


def unpatch() -> None:
    """Undo :func:`patch`: put back every module and every name.

    Connections that are open stay what they are, and what they raise is caught as before.
    """
    with _lock:
        _put_back()


def _put_back() -> None:
    while _attributes:
        module, name, value = _attributes.pop()
        if value is _MISSING:
            delattr(module, name)
        else:
            setattr(module, name, value)
    while _modules:
        name, value = _modules.pop()
        if value is _MISSING:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = value


def _is_installed() -> bool:
    try:
        importlib.import_module("websockets")
    except ImportError:
        return False
    return True


def _replace_modules(installed: Any) -> None:
    # What they are made of goes on using them: they are kept, and not changed.
    originals = {name: installed.find(name) for name in _APIS}
    for name, original in originals.items():
        if original is None:
            continue
        package, _, last = f"websockets.{name}".rpartition(".")
        ours = importlib.import_module(f"{_DROP_IN}.{name}")
        _set_module(f"websockets.{name}", ours)
        _set_attribute(sys.modules[package], last, ours)


def _set_module(name: str, module: ModuleType) -> None:
    _modules.append((name, sys.modules.get(name, _MISSING)))
    sys.modules[name] = module


def _set_attribute(module: ModuleType, name: str, value: Any) -> None:
    _attributes.append((module, name, vars(module).get(name, _MISSING)))
    setattr(module, name, value)


def _take_name() -> None:
    package = importlib.import_module(_DROP_IN)
    names = [_DROP_IN]
    names += [info.name for info in pkgutil.walk_packages(package.__path__, f"{_DROP_IN}.")]
    for name in names:
        _set_module("websockets" + name[len(_DROP_IN) :], importlib.import_module(name))
