"""The native step: a C++ library behind ctypes that runs whole target passes on CPUs.

`cpp/outpace_native.h` is its C interface and states the guarantees. `library.py` finds it, says why
it is missing, and chooses the instruction-set path; `weights.py`, `quantise.py`, `pool.py`,
`config.py`, `model.py` and `eagle.py` are what the rest of the package uses; `interface.py` mirrors
the C structs. Nothing here imports torch.
"""
