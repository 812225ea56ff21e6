"""Stand-ins for packages that SGLang imports, and that its scheduler does not run on a CPU.

`install.sh` copies this beside SGLang as `sitecustomize.py`, so that each interpreter starts with
it. A package that is installed is preferred. In a stand-in, whatever is asked for exists; a Triton
kernel that is launched raises.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types

PACKAGES = {"IPython", "sgl_kernel", "soundfile", "torchvision", "triton"}
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # else Inductor asks the stand-in for kernels


class AnyClass(type):
    """The type of stand-ins for classes, which have every attribute."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyClass(name, (AnyObject,), {})

    def __or__(cls, other):
        return cls

    __ror__ = __or__


class AnyObject(metaclass=AnyClass):
    """A stand-in for a class, a decorator or a constant."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        is_decorator = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if is_decorator else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyObject()

    def __getitem__(self, item):
        return self

    def __mro_entries__(self, bases):
        return (object,)


class Kernel:
    """The result of `triton.jit`."""

    def __init__(self, function):
        self.fn, self.__module__ = function, getattr(function, "__module__", __name__)
        self.__name__ = getattr(function, "__name__", "kernel")

    def __getitem__(self, grid):
        return self

    def __call__(self, *args, **kwargs):
        raise RuntimeError(f"the Triton kernel {self.__name__} cannot run: Triton is a stand-in")

    run = warmup = __call__


class NoDriver:
    """Triton's driver on a machine without a GPU."""

    @property
    def active(self):
        raise RuntimeError("0 active drivers ([]). There should only be one.")


def assign_req_to_token_pool(rows, table, starts, ends, slots, _width):
    """Stores new slots in the rows of their requests: the one kernel on the scheduler's path."""
    first = 0
    for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True):
        table[row, start:end] = slots[first : first + end - start].to(table.dtype)
        first += end - start


def unchanged(*args, **kwargs):
    return lambda kernel: kernel


CONTENTS = {
    "IPython": {"get_ipython": lambda: None},
    "sgl_kernel": {"assign_req_to_token_pool_cpu": assign_req_to_token_pool},
    "torchvision": {"__version__": "0.28.0"},
    "triton": {
        "__version__": "3.9.0",
        "JITFunction": Kernel,
        "autotune": unchanged,
        "cdiv": lambda dividend, divisor: -(-dividend // divisor),
        "heuristics": unchanged,
        "jit": lambda function=None, **kwargs: Kernel if function is None else Kernel(function),
        "next_power_of_2": lambda number: 1 << (int(number) - 1).bit_length(),
    },
    "triton.runtime": {"JITFunction": Kernel, "KernelInterface": Kernel, "driver": NoDriver()},
    "triton.runtime.jit": {"JITFunction": Kernel, "KernelInterface": Kernel},
}


class AnyModule(types.ModuleType):
    """A module of a stand-in."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        if path in CONTENTS:
            return importlib.import_module(path)
        return sys.modules.get(path) or AnyClass(name, (AnyObject,), {"__module__": self.__name__})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of `PACKAGES` after all other finders."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in PACKAGES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return AnyModule(spec.name)

    def exec_module(self, module):
        vars(module).update(CONTENTS.get(module.__name__, {}))


sys.meta_path.append(Finder())
