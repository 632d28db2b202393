"""Words that the programs of one launch exchange, and products of weights with rows of them, in Gluon.

A word is two bf16. Where none has been stored it is EMPTY, a pair that no rounding returns. A program loads a word
until it is not EMPTY, so values need neither barriers nor flags. Eight warps multiply: each has a share of the inputs,
and all outputs and rows of its program.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# A program stops waiting after this many loads of a word, some 50 ms, or once another program has. It checks that
# each time it has made LOADS_PER_CHECK loads.
MAX_LOADS, LOADS_PER_CHECK = gl.constexpr(1 << 16), gl.constexpr(64)
EMPTY = gl.constexpr(-1)
# Copies of each vector; queries, keys and values have one.
COPIES = gl.constexpr(4)
# Words of a piece for all rows: half of an attention output, a residual stream, a third of the inputs of down.
PIECE = gl.constexpr(8 * 512)
PIECES = gl.constexpr(7)
# [output or row, word]: four threads read 128 bytes of a line.
TILE = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [1, 8], [1, 0]))
# [output, pair of inputs] of packed fp8: the 16 pairs of a thread, those of its words of TILE, lie together.
PACKED_TILE = gl.constexpr(gl.BlockedLayout([1, 16], [8, 4], [1, 8], [1, 0]))
_LANES = [[0, 1, 0], [0, 2, 0], [0, 4, 0], [1, 0, 0], [2, 0, 0]]
# [output, row, warp that has multiplied]: all warps' parts are in a thread, and four threads have the same.
SUMS = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 0, 1], [0, 0, 2], [0, 0, 4]], _LANES, [[4, 0, 0], [0, 0, 0], [0, 0, 0]], [], [8, 8, 8]
    )
)
# [output, row, copy]: what those four threads store.
SPREAD = gl.constexpr(gl.DistributedLinearLayout([], _LANES, [[4, 0, 0], [0, 0, 1], [0, 0, 2]], [], [8, 8, 4]))
_PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))


# -- assembly --------------------------------------------------------------------------------------------------------


@gluon.constexpr_function
def poll_asm(num_words, vectors, wide):
    """Load the words of a thread, ``wide`` in a row, of each vector until none is EMPTY, or the wait times out."""
    total = num_words * vectors
    failed, check_mask = 2 * total, LOADS_PER_CHECK.value - 1
    loads = range(0, total, wide)
    lines = ["{", f".reg .pred p, q, p<{total}>;", f".reg .b32 c, t, v<{total}>;", "mov.b32 c, 0;"]
    # The first loads have no predicate, or registers would keep what v had before throughout a loop around this.
    for is_first in (True, False):
        lines += [] if is_first else ["bra.uni FIRST;", "POLL:"]
        for i in loads:
            values = ", ".join(f"v{i + j}" for j in range(wide))
            place = i % num_words
            # In TILE a thread has eight words in a row, and those 256 words on.
            at = f"[${total + i - place} + {place % 8 * 4 + place // 8 * 1024}]"
            lines += [f"{'' if is_first else f'@p{i} '}ld.relaxed.gpu.global.v{wide}.b32 {{{values}}}, {at};"]
    lines += ["FIRST:"]
    lines += ["add.u32 c, c, 1;", f"and.b32 t, c, {check_mask};", "setp.ne.u32 q, t, 0;", "@q bra CHECK;"]
    lines += [f"ld.relaxed.gpu.global.b32 t, [${failed}];", "setp.ne.u32 q, t, 0;", "@q bra DONE;", "CHECK:"]
    lines += [f"setp.ge.u32 q, c, {MAX_LOADS.value};"]
    for i in loads:
        lines += [f"setp.eq.s32 p{i}, v{i}, -1;"]
        lines += [f"setp.eq.or.s32 p{i}, v{i + j}, -1, p{i};" for j in range(1, wide)]
    lines += ["mov.pred p, p0;", *(f"or.pred p, p, p{i};" for i in loads[1:])]
    lines += ["@q bra TIMEOUT;", "@p bra POLL;", "bra.uni DONE;"]
    lines += ["TIMEOUT:", f"st.relaxed.gpu.global.b32 [${failed}], 1;", "DONE:"]
    lines += [f"mov.b32 ${i}, v{i};" for i in range(total)]
    return "\n".join([*lines, "}"])


@gluon.constexpr_function
def poll_constraints(num_words, vectors):
    total = num_words * vectors
    return ",".join(["=&r"] * total + ["l"] * total + ["l"] * num_words)


@gluon.constexpr_function
def product_asm(num_words, sets):
    """Multiply one or two sets of eight outputs' weights with eight rows of inputs.

    In each thread the first two of each set's results are the sums of two rows.
    """
    mma = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
    a, b, x = sets * num_words, (sets + 1) * num_words, 2 * sets * num_words
    lines = ["{", ".reg .f32 c<4>, d<4>;", ".reg .b32 zero;", "mov.b32 zero, 0;"]
    lines += [f"mov.b32 {name}{i}, 0;" for name in "cd" for i in range(4)]
    for m in range(0, num_words, 2):
        sums = ", ".join(f"{'cd'[m // 2 % 2]}{i}" for i in range(4))
        low, high = ("zero", "zero") if sets == 1 else (f"${b + m}", f"${b + m + 1}")
        weights = f"${a + m}, {low}, ${a + m + 1}, {high}"
        lines += [f"{mma} {{{sums}}}, {{{weights}}}, {{${x + m}, ${x + m + 1}}}, {{{sums}}};"]
    lines += [f"add.f32 ${o * num_words + i}, c{2 * o + i}, d{2 * o + i};" for o in range(sets) for i in range(2)]
    lines += [f"mov.b32 ${o * num_words + i}, 0;" for o in range(sets) for i in range(2, num_words)]
    return "\n".join([*lines, "}"])


@gluon.constexpr_function
def product_constraints(num_words, sets):
    return ",".join(["=&f"] * sets * num_words + ["r"] * (sets + 1) * num_words)


@gluon.constexpr_function
def unpack_asm(num_words):
    """Convert pairs of words of e4m3 to words of bf16: the bytes of a pair are the words' second, first, second, first.

    An exponent of e4m3 is 120 less than that of bf16. The product adds it, and is exact for subnormal values too.
    """
    lines = ["{", ".reg .b32 t, u, two;", "mov.b32 two, 0x7B807B80;"]
    for i in range(num_words):
        pair = f"${num_words + i // 2}"
        lines += [f"shr.u32 t, {pair}, 4;", f"mov.b32 u, {pair};"] if i % 2 == 0 else []
        lines += [f"shl.b32 t, {pair}, 4;", f"shl.b32 u, {pair}, 8;"] if i % 2 else []
        lines += ["and.b32 t, t, 0x07F007F0;", "and.b32 u, u, 0x80008000;", "or.b32 t, t, u;"]
        lines += [f"mul.rn.bf16x2 ${i}, t, two;"]
    return "\n".join([*lines, "}"])


@gluon.constexpr_function
def join_asm(num_words):
    return "\n".join(f"mov.b32 ${i}, ${num_words + i};" for i in range(num_words))


@gluon.constexpr_function
def word_constraints(num_words, num_inputs):
    return ",".join(["=&r"] * num_words + ["r"] * num_inputs)


MULTIPLY_PAIRS = gl.constexpr("mul.rn.bf16x2 $0, $1, $2;")
# The word of two neighboring outputs: those of a row are 8 lanes apart.
PAIR_UP = gl.constexpr(
    """{
    .reg .b32 t, u, v; .reg .pred p;
    shfl.sync.bfly.b32 t, $1, 8, 0x1f, 0xffffffff;
    mov.u32 u, %laneid; and.b32 u, u, 8; setp.eq.u32 p, u, 0;
    cvt.rn.bf16x2.f32 u, t, $1; cvt.rn.bf16x2.f32 v, $1, t; selp.b32 $0, u, v, p;
    }"""
)
STORE = gl.constexpr("{ .reg .pred p; setp.ne.s32 p, $3, 0; @p st.relaxed.gpu.global.b32 [$1], $2; mov.b32 $0, 0; }")


# -- words -----------------------------------------------------------------------------------------------------------


@gluon.jit
def poll(at, failed_ptr):
    """Words [row, word] at ``at`` once none is EMPTY."""
    return gl.inline_asm_elementwise(
        poll_asm(16, 1, 4), poll_constraints(16, 1), [at, failed_ptr.to(gl.int64)],
        dtype=gl.int32, is_pure=False, pack=16,
    )  # fmt: skip


@gluon.jit
def poll_two(a, b, failed_ptr):
    return gl.inline_asm_elementwise(
        poll_asm(16, 2, 4), poll_constraints(16, 2), [a, b, failed_ptr.to(gl.int64)],
        dtype=(gl.int32, gl.int32), is_pure=False, pack=16,
    )  # fmt: skip


@gluon.jit
def poll_three(a, b, c, failed_ptr):
    return gl.inline_asm_elementwise(
        poll_asm(16, 3, 4), poll_constraints(16, 3), [a, b, c, failed_ptr.to(gl.int64)],
        dtype=(gl.int32, gl.int32, gl.int32), is_pure=False, pack=16,
    )  # fmt: skip


@gluon.jit
def poll_head(q, k, v, failed_ptr):
    """Words [pair of channels] of a query, its key and its value."""
    return gl.inline_asm_elementwise(
        poll_asm(2, 3, 2), poll_constraints(2, 3), [q, k, v, failed_ptr.to(gl.int64)],
        dtype=(gl.int32, gl.int32, gl.int32), is_pure=False, pack=2,
    )  # fmt: skip


@gluon.jit
def poll_head_and_earlier(q, k, v, earlier_k, earlier_v, failed_ptr):
    """Words of ``poll_head``, and of the key and the value of an earlier position."""
    return gl.inline_asm_elementwise(
        poll_asm(2, 5, 2), poll_constraints(2, 5), [q, k, v, earlier_k, earlier_v, failed_ptr.to(gl.int64)],
        dtype=(gl.int32, gl.int32, gl.int32, gl.int32, gl.int32), is_pure=False, pack=2,
    )  # fmt: skip


@gluon.jit
def publish(at, words, mask):
    """Store words, each at once, so that another program loads all of it or nothing."""
    gl.inline_asm_elementwise(STORE, "=r,l,r,r", [at, words, mask], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def spread(v):
    """v [output, row] for each copy."""
    v = gl.convert_layout(v, gl.SliceLayout(2, SPREAD), assert_trivial=True)
    return gl.expand_dims(v, 2) + gl.full([8, 8, 4], 0, v.dtype, SPREAD)


@gluon.jit
def pair_up(v):
    """v [output, row] -> the word of its pair of outputs, for each copy."""
    return gl.inline_asm_elementwise(PAIR_UP, "=&r,f", [spread(v)], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def bits(x):
    """bf16 of x in the low half of a word."""
    return x.to(gl.bfloat16).to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF


@gluon.jit
def low(words):
    return (words << 16).to(gl.float32, bitcast=True)


@gluon.jit
def high(words):
    return (words & -65536).to(gl.float32, bitcast=True)


@gluon.jit
def multiply_pairs(x, y):
    return gl.inline_asm_elementwise(MULTIPLY_PAIRS, "=r,r,r", [x, y], dtype=gl.int32, is_pure=True, pack=1)


# -- weights in fp8 --------------------------------------------------------------------------------------------------


@gluon.jit
def from_packed(words):
    """Words [output, word] in TILE of those that a thread has of PACKED_TILE. Nothing moves."""
    words = gl.permute(gl.reshape(words, [8, 8, 4, 2, 8]), (0, 3, 1, 2, 4))
    return gl.convert_layout(gl.reshape(words, [8, 512]), TILE, assert_trivial=True)


@gluon.jit
def unpack(pairs):
    """Words of bf16 of a chunk of packed e4m3, exactly."""
    words = gl.inline_asm_elementwise(
        unpack_asm(16), word_constraints(16, 8), [pairs], dtype=gl.int32, is_pure=True, pack=16
    )
    return from_packed(words)


@gluon.jit
def join(first_half, second_half):
    """Words of two chunks of bf16, each of half of the inputs."""
    words = gl.inline_asm_elementwise(
        join_asm(16), word_constraints(16, 16), [first_half, second_half], dtype=gl.int32, is_pure=True, pack=16
    )
    return from_packed(words)


# -- products --------------------------------------------------------------------------------------------------------


@gluon.jit
def first(a, b):
    return a


@gluon.jit
def first_pair(x):
    """The first two values of each thread, [output, warp, row]."""
    x = gl.reshape(x, [8, 2, 8, 4, 4, 2])
    return gl.reshape(gl.reduce(gl.reduce(x, 4, first), 1, first), [8, 8, 8])


@gluon.jit
def dot(w, x):
    """Parts [output, warp, row] of a product: each warp has a share of the inputs."""
    sums = gl.inline_asm_elementwise(
        product_asm(16, 1), product_constraints(16, 1), [w, x], dtype=gl.float32, is_pure=True, pack=16
    )
    return first_pair(sums)


@gluon.jit
def two_dots(w, v, x):
    a, b = gl.inline_asm_elementwise(
        product_asm(16, 2), product_constraints(16, 2), [w, v, x],
        dtype=(gl.float32, gl.float32), is_pure=True, pack=16,
    )  # fmt: skip
    return first_pair(a), first_pair(b)


@gluon.jit
def squares(x):
    """Parts of each row's sum of squares, the same for all outputs."""
    return dot(gl.full([8, 512], 0x3F803F80, gl.int32, TILE), multiply_pairs(x, x))


@gluon.jit
def new_parts():
    """Shared memory [warp, output, row]."""
    return gl.allocate_shared_memory(gl.float32, [8, 8, 8], _PLAIN)


@gluon.jit
def store_parts(parts, y):
    parts.permute((1, 0, 2)).store(y)


@gluon.jit
def sum_parts(parts):
    """Sum [output, row] of what all warps have stored."""
    return gl.sum(parts.permute((1, 2, 0)).load(SUMS), 2)
