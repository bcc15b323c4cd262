"""stub"""
from contextlib import contextmanager
@contextmanager
def scan_kernels(module):
    yield
