"""Names that a package imports when they are first asked for (PEP 562).

Importing torch takes seconds, and `autodropout status`, `--help` and the shell's completion need none of it. So a
package whose names need torch says where they are, and shows type checkers the imports that it leaves out:

    if TYPE_CHECKING:
        from autodropout.layers import DropLayer
    else:
        __getattr__, __dir__ = lazy(__name__, {"autodropout.layers": ["DropLayer"]})

The functions are hidden from type checkers, which would take every misspelt name for one that `__getattr__` knows.
"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence


def lazy(package: str, homes: Mapping[str, Sequence[str]]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The package's `__getattr__` and `__dir__`; `homes` says which module has which of its names."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)  # from now on it is found without us
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of})

    return get, names
