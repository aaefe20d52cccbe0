"""Packed masks in Triton: the kernels behind `patterns/bits.py` and `patterns/by_head.py` on a GPU.

    draw (one lane a unit)  -->  cover (one lane a byte of cells)  -->  apply (forward and backward)
    who is hit, and where        eight cells to a byte, and their      read, mask, scale, write
                                 number

Everything that a policy can change is loaded from memory, nothing is an argument: one compiled kernel serves all
patterns and rates, and so does one captured CUDA graph. `TRITON_INTERPRET=1` runs the kernels on a CPU, for tests.
"""
