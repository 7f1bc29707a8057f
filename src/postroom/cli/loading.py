"""From `MODULE:APP` on the command line to the consumer that it names."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from postroom.cli.exits import CommandFailed, Exit
from postroom.consumer import Consumer
from postroom.settings import suggestion


def consumer_at(path: str) -> Consumer:
    """Import the module, the working directory included, and return the consumer in it."""
    module_name, colon, names = path.partition(":")
    named = all(part.isidentifier() for part in module_name.split("."))
    if not named or (colon and not names):
        raise _refused(f"{path!r} is not MODULE:APP, such as shop.shipping:consumer")
    module = _imported(module_name)
    if not colon:
        raise _refused(f"{path!r} does not say which consumer of the module", module)
    found: object = module
    for name in names.split("."):
        if not hasattr(found, name):
            raise _refused(f"module {module_name!r} has no {names!r}", module, names)
        found = getattr(found, name)
    if not isinstance(found, Consumer):
        raise _refused(f"{path} is a {type(found).__name__}, not a Consumer", module)
    return found


def _imported(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _broken(name, error) from error
        raise _refused(f"there is no module {error.name!r} in {here} or on the path") from error
    except CommandFailed:
        raise
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> CommandFailed:
    return CommandFailed(
        Exit.USAGE,
        f"importing {name!r} failed: {type(error).__name__}: {error}",
        cure="`postroom --debug consume ...` shows where",
    )


def _refused(reason: str, module: ModuleType | None = None, wanted: str = "") -> CommandFailed:
    if module is None:
        cure = "give MODULE:APP as in an import: shop.shipping:consumer for shop/shipping.py"
    else:
        consumers = [name for name, value in vars(module).items() if isinstance(value, Consumer)]
        cure = "the module has no consumer; make one: consumer = Consumer(...)"
        if consumers:
            names = [f"{module.__name__}:{name}" for name in consumers]
            cure = suggestion(f"{module.__name__}:{wanted}", names)
    return CommandFailed(Exit.USAGE, reason, cure=cure)
