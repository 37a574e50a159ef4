"""Stands in for SGLang's kernels, whose wheels need CUDA.

SGLang takes torch's own paths on a CPU without AMX and calls none of the kernels there. A name that is imported from this
package is a function that raises. assign_req_to_token_pool_cpu is called, and has a version for torch below.
"""
import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.4.10"


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len):
    at = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist()):
        req_to_token[row, start:end] = out_cache_loc[at : at + end - start].to(req_to_token.dtype)
        at += end - start


class _Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name in globals():
            return globals()[name]

        def missing(*args, **kwargs):
            raise NotImplementedError(f"{self.__name__}.{name} has no version for a CPU")

        return missing


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path=None, target=None):
        if fullname.startswith("sgl_kernel.") and fullname != "sgl_kernel.scalar_type":  # SGLang has its own of that one
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        return _Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(_Finder())
__getattr__ = _Module(__name__).__getattr__
