"""Finding a host's worker: ``package.module:name``."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import Any

from ..worker import Worker
from .errors import CannotRun


def locate(target: str) -> Worker:
    """Return the worker that *target* names, or that the function it names returns.

    The current folder is importable, as with other servers.

    Raises:
        CannotRun: There is no such module or name, or importing it fails, or it is no worker.
    """
    path, colon, names = target.partition(":")
    if not path or (colon and not names):
        raise CannotRun(f"{target!r} must be of the form package.module:worker")
    if (here := os.getcwd()) not in sys.path:  # noqa: PTH109 - as text
        sys.path.insert(0, here)
    module = _module(path)
    if not colon:
        raise CannotRun(f"{target!r} must be of the form package.module:worker; {_known(module)}")
    found: Any = module
    for name in names.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise CannotRun(f"module {path!r} has no {names!r}; {_known(module)}") from None
    if callable(found) and not isinstance(found, type):
        try:
            found = found()
        except Exception:  # noqa: BLE001 - the host's own
            raise CannotRun(f"{target!r} raises:\n{_own_part(traceback.format_exc())}") from None
    if not isinstance(found, Worker):
        kind = found.__name__ if isinstance(found, type) else type(found).__name__
        raise CannotRun(
            f"{target!r} must be a Worker, or a function that returns one, not {kind}; "
            f"{_known(module)}"
        )
    return found


def _module(path: str) -> ModuleType:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as missing:
        if missing.name is not None and f"{path}.".startswith(f"{missing.name}."):
            raise CannotRun(f"there is no module {missing.name!r} here or installed") from None
        raise CannotRun(
            f"importing {path!r} fails:\n{_own_part(traceback.format_exc())}"
        ) from None
    except Exception:  # noqa: BLE001 - the host's own
        raise CannotRun(
            f"importing {path!r} fails:\n{_own_part(traceback.format_exc())}"
        ) from None


def _own_part(text: str) -> str:
    """Return a traceback without what is this module's and the import system's."""
    head, *frames = text.split("\n  File ")
    ours = (f'"{__file__}"', '"<frozen importlib', f'"{importlib.__file__}"')
    return "\n  File ".join([head, *(frame for frame in frames if not frame.startswith(ours))])


def _known(module: ModuleType) -> str:
    """Return which workers a module has, for a message."""
    names = [name for name, value in vars(module).items() if isinstance(value, Worker)]
    if not names:
        return f"{module.__name__} has no Worker"
    return f"{module.__name__} has {', '.join(sorted(names))}"
