"""Lets unchanged programs that import ``websockets`` use connections of this package.

If ``websockets`` is installed, the modules of its asyncio and blocking APIs are replaced; the Sans-I/O protocol, the
legacy API and trio stay. If it is not installed, the drop-in package takes its name.
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

# The modules that are replaced.
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

# The state that unpatch restores: attributes of modules, and entries of sys.modules.
_attributes: list[tuple[ModuleType, str, Any]] = []
_modules: list[tuple[str, Any]] = []


def patch() -> None:
    """Make ``import websockets`` use connections of wirespeed, in the whole process.

    Call it before importing other modules. Names and modules that were imported from ``websockets`` before stay
    unchanged and keep working. From now on, exceptions of ``websockets`` also catch those of wirespeed. A second call
    does nothing. If the call raises, nothing is changed.

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
                _install_drop_in()
        except BaseException:
            # Restore everything: a program must not use a mixture of both libraries.
            _restore()
            raise


def unpatch() -> None:
    """Undo :func:`patch`: restore every module and every name.

    Open connections keep working, and their exceptions are caught as before.
    """
    with _lock:
        _restore()


def _restore() -> None:
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
    # The replacements use the original modules, which are stored first and not changed.
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


def _install_drop_in() -> None:
    package = importlib.import_module(_DROP_IN)
    names = [_DROP_IN]
    names += [info.name for info in pkgutil.walk_packages(package.__path__, f"{_DROP_IN}.")]
    for name in names:
        _set_module("websockets" + name[len(_DROP_IN) :], importlib.import_module(name))
