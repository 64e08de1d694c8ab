"""Lazy facades: a package re-exports its public names without importing them until they are used.

TensorFlow takes seconds to import and touches the devices; parsing a command line or a
``TF_CONFIG`` must not pay for that.
"""

import importlib


def attach(package, exports):
    """Returns ``(__getattr__, __dir__, __all__)`` for a facade module.

    Args:
        package: `str`, the facade's ``__name__``.
        exports: `dict` of public name to the module that defines it; ``None`` where the
            name is a submodule of the package itself.
    """
    names = sorted(exports)

    def getattr_(name):
        if name not in exports:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; it has {', '.join(names)}"
            )
        module = exports[name]
        if module is None:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(module), name)

    return getattr_, lambda: names, names
