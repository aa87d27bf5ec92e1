"""Compile the kernels for NVIDIA's and AMD's devices, which needs none of them, and look at the result; a line each."""

import re

import torch
from triton import compile as compiled
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from hypocenter.summary.reducers import triton_kernels
from hypocenter.summary.reducers.sampling import RUN_LENGTH, SIZE
from hypocenter.summary.reducers.torch_triton import BLOCK, MOST_PROGRAMS, layout_of

TARGETS = (GPUTarget("cuda", 80, 32), GPUTarget("hip", "gfx942", 64))
LOADED = {"bfloat16": "i16", "float64": "i64", "float8_e4m3fn": "i8"}  # as torch_triton views them
WIDE = {"bfloat16": "ld.global.v4.b32", "float64": "ld.global.v2.b64", "float8_e4m3fn": "ld.global.v2.b32"}
SIGNATURES = {
    "look": {"values": "*", "partial": "*i64", "hist": "*i64", "n": "i64", "programs": "i32"},
    "combine": {"values": "*", "partial": "*i64", "result": "*i64", "programs": "i32", "stride": "i32"},
}


def assembly(name, target, loaded, constants):
    kernel = getattr(triton_kernels, name)
    typed = {key: f"*{loaded}" if of == "*" else of for key, of in SIGNATURES[name].items()}
    numbers = {key: i for i, key in enumerate(kernel.arg_names)}
    source = ASTSource(
        fn=kernel,
        signature={key: typed.get(key, "constexpr") for key in kernel.arg_names},
        constexprs={(numbers[key],): value for key, value in constants.items()},
        attrs={(numbers[key],): [["tt.divisibility", 16]] for key, of in typed.items() if of.startswith("*")},
    )
    made = compiled(source, target=target, options={"enable_fp_fusion": False}).asm
    return made.get("ptx") or made["amdgcn"]


def faults(name, target, text, wide):
    found = []
    if target.backend == "cuda":
        if re.search(r"\.ftz", text):
            found.append("flushes subnormals")
        if re.search(r"(atom|red)\.\S*\.add\S*\.f", text):
            found.append("adds floats atomically")
        if name == "look" and wide not in text:
            found.append(f"has no {wide}")
        if re.search(r"fma\.", text):
            found.append("fuses")
    elif not re.search(r"vgpr_spill_count:\s+0\b", text):
        found.append("spills")
    elif re.search(r"atomic_add_f|atomic_pk_add_f", text):
        found.append("adds floats atomically")
    return found


for target in TARGETS:
    for dtype, loaded in LOADED.items() if target.backend == "cuda" else [("bfloat16", "i16")]:
        layout = layout_of(getattr(torch, dtype))
        for name, is_full in (("look", False), ("look", True), ("combine", False)):
            more = (
                {"BINS": layout.bins, "BLOCK": BLOCK}
                if name == "look"
                else {"MOST_PROGRAMS": MOST_PROGRAMS, "SIZE": SIZE, "RUN_LENGTH": RUN_LENGTH}
            )
            text = assembly(name, target, loaded, layout.constants | more | {"IS_FULL": is_full})
            told = ", ".join(faults(name, target, text, WIDE[dtype])) or "ok"
            print(f"{target.backend} {dtype} {name} {'full' if is_full else 'sample'}: {told}", flush=True)
