"""Compiles every kernel that the launchers would start, for a GPU that need not be there; prints how many.

A process of its own: Triton decides on being imported whether it interprets or compiles. The interpreter takes what the
compiler refuses (a variable that changes its shape in a loop), so that it alone would not do.
"""

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from autodropout.models import relative_attention_backward_kernel, relative_attention_kernel
from autodropout.patterns.kernels import apply, bernoulli, block_density, by_head, conv, sequence
from autodropout.training import adam_kernel, word_nats_kernel, word_rows_kernel

TYPES = {
    torch.int32: "*i32", torch.int64: "*i64", torch.uint8: "*u8", torch.float32: "*fp32", torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
}  # fmt: skip
compiled: set[Any] = set()


def type_of(value: Any, annotation: str) -> str:
    """As Triton's launcher finds it, who believes an annotation."""
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    if annotation:
        return annotation
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def compile_instead(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, num_warps: int, **kwargs: Any) -> None:
    given = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    ones = {
        p.name for p in kernel.params if not p.do_not_specialize and type(given[p.name]) is int and given[p.name] == 1
    }
    constants = {p.name for p in kernel.params if p.is_constexpr} | ones  # Triton makes constants of such arguments
    signature = {
        name: "constexpr" if name in constants else type_of(value, kernel.params[i].annotation_type)
        for i, (name, value) in enumerate((name, given[name]) for name in kernel.arg_names)
    }
    places = {(kernel.arg_names.index(name),): given[name] for name in constants}
    key = (kernel.__name__, tuple(signature.items()), tuple(sorted(places.items())))
    if key not in compiled:
        source = ASTSource(fn=kernel, signature=signature, constexprs=places, attrs={})
        options = {name: kwargs[name] for name in ("num_stages", "maxnreg") if name in kwargs}
        built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options | {"num_warps": num_warps})
        assert built.asm["cubin"]
        compiled.add(key)


def main() -> None:
    JITFunction.run = compile_instead
    rate, seed, stream = torch.tensor(0.2), torch.tensor(1), 0x123456789ABCDEF
    tokens = torch.zeros(9, dtype=torch.int32)
    for shape in ([2, 8, 32, 32], [256, 1024, 7, 7]):
        for last in (False, True):
            bits, kept = conv.conv_bits(tokens, rate, seed, stream, shape, last)
            if shape[0] == 2:
                h = torch.empty(shape, dtype=torch.bfloat16)
                layout = torch.channels_last if last else torch.contiguous_format
                h = h.contiguous(memory_format=layout)
                _ = apply.apply_last(h, bits, kept) if last else apply.apply_rows(h.flatten(2), bits, kept)
    sites = torch.tensor([[8, 1], [16, 2]])
    conv.conv_bits_together(tokens.expand(2, 9).contiguous(), rate.expand(2), sites, seed, 4, [8, 16], [7, 7], True)
    for children, channels in ((1, 256), (1, 64), (1, 140), (1, 38), (3, 9)):
        many = [value.expand(children, *value.shape) for value in (tokens[:4], rate, seed)]
        bits, kept = sequence.sequence_bits(*many, stream, [2, 70, channels])
        apply.apply_rows(torch.empty(children, 2, 70, channels, dtype=torch.float16), bits, kept)
    sequence.sequence_bits(tokens[:4], rate, seed, stream, [64, 512, 1024])  # large enough for lanes with several units
    conv.conv_bits_together(tokens.expand(2, 9).contiguous(), rate.expand(2), sites, seed, 1, [1, 16], [2, 2], True)
    bernoulli.bernoulli(seed, rate, [7])
    bernoulli.rare(seed, rate, [7])
    block_density.block_density(32, 56, 7, 7, rate, 10, 1e-300)
    for dtype in (torch.float32, torch.bfloat16):
        compile_others(dtype)
    print(len(compiled))


def compile_others(dtype: torch.dtype) -> None:
    """Those that are no masks, which language models side by side need."""
    weight, gradient, numbers = torch.empty(3, 4096), torch.empty(3, 4096, dtype=dtype), torch.empty(3, 1)
    adam_kernel.norms([gradient, gradient[:, :1].contiguous()])
    copy = None if dtype == torch.float32 else gradient
    adam_kernel.descend(weight, copy, weight, weight, gradient, numbers.bool(), *[numbers] * 3, (0.9, 0.999), 1e-8)
    word_rows_kernel.add_rows(gradient.view(3, 64, 64), torch.empty(3, 70, 64), torch.zeros(70).long())
    scores, bias, targets = torch.empty(3, 1000, 112, dtype=dtype), torch.empty(3, 1000), torch.zeros(112).long()
    nats, logs = word_nats_kernel.forward(scores, bias, targets)
    word_nats_kernel.backward(nats, scores, bias, targets, logs)
    for heads, size in ((10, 38), (8, 32), (3, 5)):
        h = torch.empty(2, 3, 70, 384, dtype=dtype)[..., : heads * size]
        bits = torch.zeros(2, 3, heads, 70, -(-size // 8), dtype=torch.uint8)
        by_head.put_by_head(h, bits, torch.empty(2), heads)
    compile_attention(dtype, 2, 32, 70, 70, True)
    if dtype == torch.bfloat16:
        compile_attention(dtype, 3, 38, 70, 140, True)
        compile_attention(dtype, 1, 5, 9, 12, False)


def compile_attention(dtype: torch.dtype, heads: int, size: int, length: int, reach: int, masked: bool) -> None:
    query = torch.empty(2, 3, length, heads * size + 4, dtype=dtype)[..., :-4]
    key = torch.empty(2, 3, reach, heads * size + 4, dtype=dtype)[..., :-4]
    by_distance = torch.empty(2, heads, 3 * length, reach + 4, dtype=dtype)
    bits = torch.zeros(2, 3, heads, length, (reach + 7) // 8, dtype=torch.uint8)
    mask = (bits, torch.empty(2)) if masked else (None, None)
    inputs = query, key, key, by_distance, *mask
    context, logs = relative_attention_kernel.forward(*inputs, heads, reach - length)
    relative_attention_backward_kernel.backward(context, *inputs, context, logs, heads, reach - length)


if __name__ == "__main__":
    sys.exit(main())
