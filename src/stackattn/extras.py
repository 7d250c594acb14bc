"""Optional packages, imported only when needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["import_extra"]


def import_extra(module: str, extra: str, purpose: str) -> Any:
    """Import and return a module of an optional package.

    Commands call this before they create files or print results, so that a missing package leaves nothing behind.

    Args:
        module: name of the module.
        extra: the extra of stackattn that installs it.
        purpose: what needs the module, as the subject of the error message.

    Raises:
        ModuleNotFoundError: the module is not installed; the message says how to install it. If the module is installed
            but imports one that is not, the original error is raised.

    Example:
        >>> import_extra("json", "text", "this example").dumps([1])
        '[1]'
        >>> import_extra("no_module", "text", "this example")
        Traceback (most recent call last):
        ModuleNotFoundError: this example needs no_module, which is not installed; run pip install 'stackattn[text]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ModuleNotFoundError(
            f"{purpose} needs {module}, which is not installed; run pip install 'stackattn[{extra}]'", name=error.name
        ) from None
