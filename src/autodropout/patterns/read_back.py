"""Masks in code that torch compiles for a GPU: where they may be fused with a reduction of rows.

torch's compiler before 2.14 has a race. Where it goes through a row in pieces, and twice, as for a normalization, it
may store a value the first time and read it back the second; another warp does not see it yet (pytorch issue 190517).
Gradients are then wrong, and two runs with one seed come apart; nothing fails. Rows of up to 1,024 values are not gone
through in pieces, unless something is read along them that does not lie side by side, as the bytes of a packed mask,
each of which serves eight values.

So on those versions a row's mask is put on by a kernel of its own, and no normalization knows of it. Whoever compiles
models himself, as our trainings do, may mend the compiler of his process first, and masks are fused again:

    mend_compiler()
    torch.compile(function)
"""

from typing import Any

import torch
from torch.torch_version import TorchVersion

RACES = TorchVersion(torch.__version__) < "2.14"

_mended = False


def fuses_rows() -> bool:
    """Whether compiled code may put a mask on rows that it also reduces."""
    return not RACES or _mended


def mend_compiler() -> None:
    """From here on, what this process compiles has a barrier before it reads back; nothing to do on newer versions.

    It is torch's own mend. What has been compiled before stays as it is, in memory and on disk.
    """
    global _mended
    if fuses_rows():
        return
    from torch._inductor.codegen.common import DeferredLine
    from torch._inductor.codegen.triton import TritonKernel, TritonScheduling

    class WithBarriers(TritonKernel):
        reading = ""

        def load(self, name: str, index: Any) -> Any:
            self.reading = name
            try:
                return super().load(name, index)
            finally:
                self.reading = ""

        def get_load_buffer(self, indexing: Any) -> Any:
            """Where the code goes that loads. Stores of a loop that has ended are not valid as variables any more."""
            lines = super().get_load_buffer(indexing)  # type: ignore[no-untyped-call]
            if self.reading in self.cse.invalidated_stores:
                lines.writeline(DeferredLine(self.reading, "tl.debug_barrier()"))
            return lines

    TritonScheduling.kernel_type = WithBarriers
    torch.compiler.config.cache_key_tag += "autodropout: barriers"
    _mended = True
