"""One pass of the code predictor for one row in one launch, in Gluon: every multiprocessor has one program.

Vectors go from program to program through buffers filled with EMPTY, a pair of bf16 that no rounding returns: who needs
a value loads it until it is there. Each launch empties the buffers of the next one, and two sets take turns. There are
copies, so that few multiprocessors load the same line of the L2 cache.

Weights come through the tensor memory accelerator into a ring in shared memory, as far ahead as there is room. Loads of
a multiprocessor are answered in order: weights on their way to registers would hold up the loads of values. A warp
multiplies its share of the inputs with all rows of its program on matrix units.
"""
# What a kernel knows when it compiles is written large.
# ruff: noqa: N803, N806

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

# Loads of a value before a program gives up and says so.
LIMIT = 1 << 16
# Columns of the table of addresses.
NORM, Q_NORM, K_NORM, AFTER, COLUMNS = (gl.constexpr(i) for i in range(5))
EMPTY = gl.constexpr(-1)
# Of each vector but queries, keys and values.
COPIES = gl.constexpr(4)
# A chunk: rows, and int32 in each; chunks of a layer: 4 qkv, 2 out, 6 gate and up, 3 down.
ROWS, WIDTH = gl.constexpr(8), gl.constexpr(512)
CHUNKS = gl.constexpr(15)
# A thread holds 16 inputs in a row of a line of weights; four threads read 128 bytes of a line.
TILE = gl.constexpr(gl.BlockedLayout([1, 8], [8, 4], [1, 8], [1, 0]))
_LANES = [[0, 0], [0, 0], [1, 0], [2, 0], [4, 0]]
# [row, warp], and the same with all warps' values in each thread.
BY_WARP = gl.constexpr(gl.DistributedLinearLayout([], _LANES, [[0, 1], [0, 2], [0, 4]], [], [8, 8]))
TOGETHER = gl.constexpr(gl.DistributedLinearLayout([[0, 1], [0, 2], [0, 4]], _LANES, [[0, 0]] * 3, [], [8, 8]))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
PLAIN_1 = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))
# Attention: [position, pair of channels]; two positions a warp.
ATT = gl.constexpr(gl.BlockedLayout([2, 2], [1, 32], [8, 1], [1, 0]))
# [warp, channel] with all warps' values in each thread; four threads hold the same.
MERGE = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [1, 0], [2, 0], [4, 0]],
        [[0, 0], [0, 0], [0, 2], [0, 4], [0, 8]],
        [[0, 16], [0, 32], [0, 64]],
        [],
        [8, 128],
    )
)
# [channel, copy]
SPREAD = gl.constexpr(
    gl.DistributedLinearLayout(
        [[1, 0]], [[0, 1], [0, 2], [2, 0], [4, 0], [8, 0]], [[16, 0], [32, 0], [64, 0]], [], [128, 4]
    )
)


# -- assembly --------------------------------------------------------------------------------------------------------


@gluon.constexpr_function
def poll_asm(n, vectors, wide):
    """Load n int32, ``wide`` in a row, of each of some vectors until none is EMPTY; give up after LIMIT loads."""
    m = n * vectors
    fail = 2 * m
    lines = ["{", ".reg .pred p, q;", ".reg .b32 c;", f".reg .b32 v<{m}>;", "mov.b32 c, 0;", "POLL:"]
    for i in range(0, m, wide):
        values = ", ".join(f"v{i + j}" for j in range(wide))
        lines += [f"ld.relaxed.gpu.global.v{wide}.b32 {{{values}}}, [${m + i}];"]
    lines += ["add.u32 c, c, 1;", f"setp.ge.u32 q, c, {LIMIT};"]
    lines += [f"setp.eq.s32 p, v{i}, -1;" if i == 0 else f"setp.eq.or.s32 p, v{i}, -1, p;" for i in range(m)]
    lines += ["@q bra GIVEN_UP;", "@p bra POLL;", "bra.uni DONE;", "GIVEN_UP:", f"st.global.b32 [${fail}], 1;", "DONE:"]
    lines += [f"mov.b32 ${i}, v{i};" for i in range(m)]
    return "\n".join([*lines, "}"])


@gluon.constexpr_function
def poll_constraints(n, vectors):
    return ",".join(["=&r"] * n * vectors + ["l"] * n * vectors + ["l"] * n)


MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"


@gluon.constexpr_function
def mma_asm(n, kind):
    """Products of n int32 of weights, two sets of eight rows, with n of inputs; in each thread the first is the sum.

    Even columns hold one vector of inputs, odd ones another. "both": each set times the sum of both. "cross": the first
    set times the first vector, plus the second times the second. "one": a single set times the first vector.
    """
    num_out = 2 if kind == "both" else 1
    num_sets = 1 if kind == "one" else 2
    first = num_out * n
    a, b, x = first, first + n, first + num_sets * n
    lines = ["{", ".reg .f32 c<4>, d<4>;", ".reg .b32 zero;", "mov.b32 zero, 0;"]
    lines += [f"mov.b32 {name}{i}, 0;" for name in "cd" for i in range(4)]
    for m in range(0, n, 2):
        name = "cd"[m // 2 % 2]
        sums = ", ".join(f"{name}{i}" for i in range(4))
        low, high = ("zero", "zero") if kind == "one" else (f"${b + m}", f"${b + m + 1}")
        weights = f"${a + m}, {low}, ${a + m + 1}, {high}"
        lines += [f"{MMA} {{{sums}}}, {{{weights}}}, {{${x + m}, ${x + m + 1}}}, {{{sums}}};"]
    lines += [f"add.f32 c{i}, c{i}, d{i};" for i in range(4)]
    if kind == "both":
        lines += ["add.f32 $0, c0, c1;", f"add.f32 ${n}, c2, c3;"]
    else:
        lines += ["mov.f32 $0, c0;" if kind == "one" else "add.f32 $0, c0, c3;"]
    lines += [f"mov.b32 ${i + o * n}, 0;" for o in range(num_out) for i in range(1, n)]
    return "\n".join([*lines, "}"])


@gluon.constexpr_function
def mma_constraints(n, kind):
    num_out = 2 if kind == "both" else 1
    num_in = 2 if kind == "one" else 3
    return ",".join(["=&f"] * num_out * n + ["r"] * num_in * n)


SCALE_PAIRS = gl.constexpr(
    """{
    .reg .b32 h, m, l; .reg .pred p;
    mul.rn.bf16x2 h, $1, $2; neg.bf16x2 m, h; fma.rn.bf16x2 l, $1, $2, m;
    setp.ne.s32 p, $3, 0; selp.b32 $0, l, h, p;
    }"""
)
PAIR_UP = gl.constexpr(
    """{
    .reg .b32 t, u; .reg .pred p;
    shfl.sync.bfly.b32 t, $1, 4, 0x1f, 0xffffffff;
    mov.u32 u, %laneid; and.b32 u, u, 4; setp.eq.u32 p, u, 0;
    @p cvt.rn.bf16x2.f32 $0, t, $1; @!p cvt.rn.bf16x2.f32 $0, $1, t;
    }"""
)
STORE = gl.constexpr("{ .reg .pred p; setp.ne.s32 p, $3, 0; @p st.relaxed.gpu.global.b32 [$1], $2; mov.b32 $0, 0; }")
STORE_PAIR = gl.constexpr("st.relaxed.gpu.global.b32 [$2], $4; mov.b32 $0, 0; mov.b32 $1, 0;")


# -- exchange --------------------------------------------------------------------------------------------------------


@gluon.jit
def poll(at, fail_ptr):
    """int32 [8, 512] at ``at`` once none is EMPTY."""
    return gl.inline_asm_elementwise(
        poll_asm(16, 1, 4), poll_constraints(16, 1), [at, fail_ptr.to(gl.int64)], dtype=gl.int32, is_pure=False, pack=16
    )


@gluon.jit
def poll2(a, b, fail_ptr):
    return gl.inline_asm_elementwise(
        poll_asm(16, 2, 4), poll_constraints(16, 2), [a, b, fail_ptr.to(gl.int64)],
        dtype=(gl.int32, gl.int32), is_pure=False, pack=16,
    )  # fmt: skip


@gluon.jit
def poll3(a, b, c, fail_ptr):
    return gl.inline_asm_elementwise(
        poll_asm(2, 3, 2), poll_constraints(2, 3), [a, b, c, fail_ptr.to(gl.int64)],
        dtype=(gl.int32, gl.int32, gl.int32), is_pure=False, pack=2,
    )  # fmt: skip


@gluon.jit
def publish(at, words, inside, other):
    """Store int32 [row, warp]; empty the same place of the other set, ``other`` int32 away."""
    gl.inline_asm_elementwise(STORE, "=r,l,r,r", [at, words, inside], dtype=gl.int32, is_pure=False, pack=1)
    empty = gl.full([8, 8], EMPTY, gl.int32, BY_WARP)
    gl.inline_asm_elementwise(STORE, "=r,l,r,r", [at + other, empty, inside], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def by_warp(v):
    """v [row] for each warp."""
    v = gl.convert_layout(v, gl.SliceLayout(1, BY_WARP), assert_trivial=True)
    return gl.expand_dims(v, 1) + gl.full([8, 8], 0, v.dtype, BY_WARP)


@gluon.jit
def pair_up(v):
    """v [row] -> for each row the bf16 of its pair of rows, [row, warp]."""
    return gl.inline_asm_elementwise(PAIR_UP, "=&r,f", [by_warp(v)], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def bits(x):
    """bf16 of x in the low half of int32."""
    return x.to(gl.bfloat16).to(gl.int16, bitcast=True).to(gl.int32) & 0xFFFF


@gluon.jit
def low(words):
    """fp32 of the bf16 in the low half of int32."""
    return (words << 16).to(gl.float32, bitcast=True)


@gluon.jit
def high(words):
    """fp32 of the bf16 in the high half of int32."""
    return (words & -65536).to(gl.float32, bitcast=True)


# -- products --------------------------------------------------------------------------------------------------------


@gluon.jit
def first(a, b):
    return a


@gluon.jit
def shrink(x):
    """The first value of each warp for each row, [row, warp]."""
    x = gl.reshape(x, [8, 2, 8, 4, 8])
    x = gl.reduce(gl.reduce(gl.reduce(x, 4, first), 3, first), 1, first)
    return gl.convert_layout(x, BY_WARP, assert_trivial=True)


@gluon.jit
def dots(w, v, y):
    """[row, warp] of the products of w and of v with y, in whose odd rows is what rounding took from even ones."""
    a, b = gl.inline_asm_elementwise(
        mma_asm(16, "both"), mma_constraints(16, "both"), [w, v, y],
        dtype=(gl.float32, gl.float32), is_pure=True, pack=16,
    )  # fmt: skip
    return shrink(a), shrink(b)


@gluon.jit
def dot(w, x):
    return shrink(
        gl.inline_asm_elementwise(
            mma_asm(16, "one"), mma_constraints(16, "one"), [w, x], dtype=gl.float32, is_pure=True, pack=16
        )
    )


@gluon.jit
def cross_dot(w, v, x):
    """The product of w with the x of even rows plus that of v with the x of odd rows."""
    return shrink(
        gl.inline_asm_elementwise(
            mma_asm(16, "cross"), mma_constraints(16, "cross"), [w, v, x], dtype=gl.float32, is_pure=True, pack=16
        )
    )


@gluon.jit
def scale_pairs(x, norm, odd):
    return gl.inline_asm_elementwise(SCALE_PAIRS, "=r,r,r,r", [x, norm, odd], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def collect(part):
    """Sum of what all warps have stored for each row."""
    return gl.sum(part.load(TOGETHER), 1)


@gluon.jit
def take(ring, n, SLOTS: gl.constexpr):
    """Load chunk n to registers."""
    return ring.index(n % SLOTS).load(TILE)


@gluon.jit
def bring(desc, row, column, ring, bar, n, SLOTS: gl.constexpr, num_chunks: gl.constexpr, inside):
    """Have a chunk brought; with the first one of a product say how many come."""
    if num_chunks > 0:
        mbarrier.expect(bar, num_chunks * ROWS * WIDTH * 4, pred=inside)
    tma.async_copy_global_to_shared(desc, [row, column], bar, ring.index(n % SLOTS), pred=inside)


@gluon.jit
def bring_chunk(
    layer, j: gl.constexpr, layers, weights, ring, bars, pid, X: gl.constexpr, HEADS: gl.constexpr,
    KV: gl.constexpr, D: gl.constexpr, SLOTS: gl.constexpr,
):  # fmt: skip
    """Have chunk j of a layer brought, counted on into the next layer; after the last one comes the head."""
    HALF: gl.constexpr = D // 2
    if j >= CHUNKS:
        bring_chunk(layer + 1, j - CHUNKS, layers, weights, ring, bars, pid, X, HEADS, KV, D, SLOTS)
    else:
        inside = layer < layers
        n = layer * CHUNKS + j
        if j < 4:
            word = pid * 16
            row = layer * ((HEADS + 2 * KV) * D) + word // HALF * D + word % HALF + j // 2 * HALF + j % 2 * 8
            bring(weights[0], row, 0, ring, bars[0], n, SLOTS, 4 if j == 0 else 0, inside)
            if j < 2:
                bring(weights[4], pid * 16 + j * 8, 0, ring, bars[0], n, SLOTS, 2 if j == 0 else 0, layer == layers)
        elif j < 6:
            row = layer * X + pid * 8
            bring(weights[1], row, (j - 4) * WIDTH, ring, bars[1], n, SLOTS, 2 if j == 4 else 0, inside)
        elif j < 12:
            row = layer * 6 * X + (j - 6) % 2 * 3 * X + (j - 6) // 2 * X + pid * 8
            bring(weights[2], row, 0, ring, bars[2], n, SLOTS, 6 if j == 6 else 0, inside)
        else:
            row = layer * X + pid * 8
            bring(weights[3], row, (j - 12) * WIDTH, ring, bars[3], n, SLOTS, 3 if j == 12 else 0, inside)


@gluon.jit
def bring_chunks(
    layer, first: gl.constexpr, end: gl.constexpr, layers, weights, ring, bars, pid, X: gl.constexpr,
    HEADS: gl.constexpr, KV: gl.constexpr, D: gl.constexpr, SLOTS: gl.constexpr,
):  # fmt: skip
    for j in gl.static_range(first, end):
        bring_chunk(layer, j, layers, weights, ring, bars, pid, X, HEADS, KV, D, SLOTS)


@gluon.jit
def new_barrier():
    bar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(bar, count=1)
    return bar


@gluon.jit
def new_part():
    return gl.allocate_shared_memory(gl.float32, [8, 8], PLAIN)


@gluon.jit
def address(table_ptr, layer, column, dtype: gl.constexpr):
    return gl.multiple_of(gl.load(table_ptr + layer * COLUMNS + column).to(gl.pointer_type(dtype)), 16)


# -- attention -------------------------------------------------------------------------------------------------------


@gluon.jit
def turn(words, norm_low, norm_high, cos, sin, eps, D: gl.constexpr):
    """The two halves of a head, normed and turned, from its words [D / 2]."""
    a, b = low(words), high(words)
    inverse = gl.rsqrt(gl.sum(a * a + b * b, 0) / D + eps)
    a, b = a * inverse * norm_low.to(gl.float32), b * inverse * norm_high.to(gl.float32)
    return a * cos - b * sin, b * cos + a * sin


@gluon.jit
def attend(
    qkv_words, out_words, other, fail_ptr, q_norm_ptr, k_norm_ptr, cos_ptr, sin_ptr, cache_ptr, head, eps, scale, start,
    tops, weights, values,
    HEADS: gl.constexpr, KV: gl.constexpr, D: gl.constexpr, LENGTH: gl.constexpr, COPY: gl.constexpr,
):  # fmt: skip
    """One query head; cache [2, LENGTH, KV, D] of one layer. A warp has two positions."""
    GROUP: gl.constexpr = HEADS // KV
    HALF: gl.constexpr = D // 2
    VALUES: gl.constexpr = LENGTH * KV * D
    lane = gl.arange(0, HALF, gl.SliceLayout(0, ATT))
    place = gl.arange(0, LENGTH, gl.SliceLayout(1, ATT))
    kv = head // GROUP
    past = cache_ptr + kv * D + gl.expand_dims(place, 1) * (KV * D) + gl.expand_dims(lane, 0)
    inside = gl.expand_dims(place < start, 1) & gl.expand_dims(lane >= 0, 0)
    keys_low = gl.load(past, mask=inside, other=0.0)
    keys_high = gl.load(past + HALF, mask=inside, other=0.0)
    values_low = gl.load(past + VALUES, mask=inside, other=0.0)
    values_high = gl.load(past + VALUES + HALF, mask=inside, other=0.0)
    cos, sin = gl.load(cos_ptr + start * HALF + lane), gl.load(sin_ptr + start * HALF + lane)
    q_norm_low, q_norm_high = gl.load(q_norm_ptr + lane), gl.load(q_norm_ptr + HALF + lane)
    k_norm_low, k_norm_high = gl.load(k_norm_ptr + lane), gl.load(k_norm_ptr + HALF + lane)
    at_q = qkv_words + head * HALF + lane
    at_k = qkv_words + (HEADS + kv) * HALF + lane
    q, k, v = poll3(at_q, at_k, at_k + KV * HALF, fail_ptr)
    q_low, q_high = turn(q, q_norm_low, q_norm_high, cos, sin, eps, D)
    q_low, q_high = q_low * scale, q_high * scale
    key_low, key_high = turn(k, k_norm_low, k_norm_high, cos, sin, eps, D)
    key_low, key_high = gl.expand_dims(key_low.to(gl.bfloat16), 0), gl.expand_dims(key_high.to(gl.bfloat16), 0)
    value_low, value_high = gl.expand_dims(low(v).to(gl.bfloat16), 0), gl.expand_dims(high(v).to(gl.bfloat16), 0)
    is_new = gl.expand_dims(place == start, 1)
    keys_low, keys_high = gl.where(is_new, key_low, keys_low), gl.where(is_new, key_high, keys_high)
    values_low, values_high = gl.where(is_new, value_low, values_low), gl.where(is_new, value_high, values_high)
    scores = gl.sum(
        keys_low.to(gl.float32) * gl.expand_dims(q_low, 0) + keys_high.to(gl.float32) * gl.expand_dims(q_high, 0), 1
    )
    scores = gl.reshape(gl.where(place <= start, scores, -1e30), [8, 2])
    top = gl.max(scores, 1)
    shares = gl.exp(scores - gl.expand_dims(top, 1))
    wide = gl.expand_dims(gl.convert_layout(gl.reshape(shares, [LENGTH]), gl.SliceLayout(1, ATT)), 1)
    tops.store(top)
    weights.store(gl.sum(shares, 1))
    values.slice(0, HALF, 1).store(gl.sum(gl.reshape(values_low.to(gl.float32) * wide, [8, 2, HALF]), 1))
    values.slice(HALF, HALF, 1).store(gl.sum(gl.reshape(values_high.to(gl.float32) * wide, [8, 2, HALF]), 1))
    tops_all, weights_all = tops.load(gl.SliceLayout(1, MERGE)), weights.load(gl.SliceLayout(1, MERGE))
    fades = gl.exp(tops_all - gl.max(tops_all, 0))
    total = gl.sum(values.load(MERGE) * gl.expand_dims(fades, 1), 0) / gl.sum(weights_all * fades, 0)
    out = gl.convert_layout(total.to(gl.bfloat16), gl.SliceLayout(1, SPREAD), assert_trivial=True)
    channel = gl.expand_dims(gl.arange(0, D, gl.SliceLayout(1, SPREAD)), 1)
    copy = gl.expand_dims(gl.arange(0, 4, gl.SliceLayout(0, SPREAD)), 0)
    at = out_words.to(gl.pointer_type(gl.bfloat16)) + head * D + channel + copy * (2 * COPY)
    out = gl.expand_dims(out, 1).to(gl.int16, bitcast=True) + gl.full([D, 4], 0, gl.int16, SPREAD)
    empty = gl.full([D, 4], -1, gl.int16, SPREAD)
    gl.inline_asm_elementwise(STORE_PAIR, "=r,=r,l,l,r", [at.to(gl.int64), out], dtype=gl.int32, is_pure=False, pack=2)
    gl.inline_asm_elementwise(
        STORE_PAIR, "=r,=r,l,l,r", [(at + 2 * other).to(gl.int64), empty], dtype=gl.int32, is_pure=False, pack=2
    )
    if head % GROUP == 0:
        here = is_new & gl.expand_dims(lane >= 0, 0)
        gl.store(past, keys_low, mask=here)
        gl.store(past + HALF, keys_high, mask=here)
        gl.store(past + VALUES, values_low, mask=here)
        gl.store(past + VALUES + HALF, values_high, mask=here)


# -- the pass --------------------------------------------------------------------------------------------------------


@gluon.jit(do_not_specialize=["start", "layers"])
def pass_kernel(
    qkv,
    out,
    gate_up,
    down,
    head,
    x_ptr,
    table_ptr,
    last_norm_ptr,
    cos_ptr,
    sin_ptr,
    cache_ptr,
    logits_ptr,
    words_ptr,
    fail_ptr,
    eps,
    scale,
    start,
    layers,
    X: gl.constexpr,
    HEADS: gl.constexpr,
    KV: gl.constexpr,
    D: gl.constexpr,
    VOCAB: gl.constexpr,
    LENGTH: gl.constexpr,
    LAYERS: gl.constexpr,
    PROGRAMS: gl.constexpr,
    SLOTS: gl.constexpr,
):
    """logits [VOCAB] of x [X]; descriptors of the layers' weights, of all layers one after another."""
    HALF: gl.constexpr = D // 2
    STRIDE: gl.constexpr = PROGRAMS // HEADS
    QKV_WORDS: gl.constexpr = (HEADS + 2 * KV) * HALF
    COPY: gl.constexpr = 7 * WIDTH
    PER_LAYER: gl.constexpr = QKV_WORDS + COPIES * COPY
    i32: gl.constexpr = gl.int32
    bf16: gl.constexpr = gl.bfloat16

    pid = gl.program_id(0)
    ring = gl.allocate_shared_memory(gl.int32, [SLOTS, ROWS, WIDTH], qkv.layout)
    bars = (new_barrier(), new_barrier(), new_barrier(), new_barrier())
    part = (new_part(), new_part(), new_part(), new_part(), new_part(), new_part(), new_part())
    other_part = new_part()
    all_weights = (qkv, out, gate_up, down, head)
    tops = gl.allocate_shared_memory(gl.float32, [8], PLAIN_1)
    weights = gl.allocate_shared_memory(gl.float32, [8], PLAIN_1)
    values = gl.allocate_shared_memory(gl.float32, [8, D], PLAIN)
    bring_chunks(0, 0, SLOTS, layers, all_weights, ring, bars, pid, X, HEADS, KV, D, SLOTS)

    # The set of this launch, and where the other one is.
    words_ptr += start % 2 * (LAYERS * PER_LAYER)
    other = LAYERS * PER_LAYER * (1 - start % 2 * 2)
    k = gl.expand_dims(gl.arange(0, WIDTH, gl.SliceLayout(0, TILE)), 0)
    line = gl.expand_dims(gl.arange(0, 8, gl.SliceLayout(1, TILE)), 1)
    odd = line % 2 + k * 0
    k_all = k + line * 0
    row = gl.arange(0, 8, gl.SliceLayout(1, BY_WARP))
    warp = gl.expand_dims(gl.arange(0, 8, gl.SliceLayout(0, BY_WARP)), 0)
    own = pid * 8 + row
    pair_0 = gl.expand_dims(pid * 16 + row, 1) + warp * 0
    own_pair = gl.expand_dims(own // 2, 1) + warp * COPY
    everywhere = (warp < COPIES).to(i32) + gl.expand_dims(row, 1) * 0
    once = (warp == 0).to(i32) + gl.expand_dims(row, 1) * 0
    mine_at = pid % COPIES * COPY
    first_head = pid // STRIDE + pid % STRIDE * HEADS

    mine = gl.load(x_ptr + pid * 8 + gl.arange(0, 8, gl.SliceLayout(1, TOGETHER))).to(gl.float32)
    x_at = x_ptr.to(gl.pointer_type(i32))
    for layer in range(layers):
        n = layer * CHUNKS
        words = words_ptr + layer * PER_LAYER
        shared = words + QKV_WORDS
        # -- qkv
        norm = gl.load(address(table_ptr, layer, NORM, i32) + k_all)
        mbarrier.wait(bars[0], layer & 1)
        w0, w1 = take(ring, n, SLOTS), take(ring, n + 1, SLOTS)
        w2, w3 = take(ring, n + 2, SLOTS), take(ring, n + 3, SLOTS)
        x = poll(x_at + k_all, fail_ptr)
        y = scale_pairs(x, norm, odd)
        y0, y1 = dots(w0, w1, y)
        y2, y3 = dots(w2, w3, y)
        part[0].store(y0)
        part[1].store(y1)
        part[2].store(y2)
        part[3].store(y3)
        part[4].store(dot(x, x))
        y0, y1, y2, y3 = collect(part[0]), collect(part[1]), collect(part[2]), collect(part[3])
        inverse = gl.rsqrt(collect(part[4]) / X + eps)
        y0, y1, y2, y3 = y0 * inverse, y1 * inverse, y2 * inverse, y3 * inverse
        publish(words + pair_0, by_warp(bits(y0) | (bits(y2) << 16)), once, other)
        publish(words + pair_0 + 8, by_warp(bits(y1) | (bits(y3) << 16)), once, other)
        bring_chunks(layer, 0 + SLOTS, 4 + SLOTS, layers, all_weights, ring, bars, pid, X, HEADS, KV, D, SLOTS)
        # -- attention
        for head_index in range(first_head, HEADS, PROGRAMS):
            attend(
                words, shared, other, fail_ptr,
                address(table_ptr, layer, Q_NORM, bf16), address(table_ptr, layer, K_NORM, bf16), cos_ptr, sin_ptr,
                cache_ptr + layer * (2 * LENGTH * KV * D), head_index, eps, scale, start, tops, weights, values,
                HEADS, KV, D, LENGTH, COPY,
            )  # fmt: skip
        # -- o
        mbarrier.wait(bars[1], layer & 1)
        w0, w1 = take(ring, n + 4, SLOTS), take(ring, n + 5, SLOTS)
        x = poll(shared + mine_at + k_all + odd * WIDTH, fail_ptr)
        other_part.store(cross_dot(w0, w1, x))
        mine = (mine + collect(other_part)).to(bf16).to(gl.float32)
        publish(shared + 2 * WIDTH + own_pair, pair_up(mine), everywhere, other)
        bring_chunks(layer, 4 + SLOTS, 6 + SLOTS, layers, all_weights, ring, bars, pid, X, HEADS, KV, D, SLOTS)
        # -- gate, up
        norm = gl.load(address(table_ptr, layer, AFTER, i32) + k_all)
        mbarrier.wait(bars[2], layer & 1)
        w0, w1 = take(ring, n + 6, SLOTS), take(ring, n + 7, SLOTS)
        w2, w3 = take(ring, n + 8, SLOTS), take(ring, n + 9, SLOTS)
        w4, w5 = take(ring, n + 10, SLOTS), take(ring, n + 11, SLOTS)
        x = poll(shared + 2 * WIDTH + mine_at + k_all, fail_ptr)
        y = scale_pairs(x, norm, odd)
        y0, z0 = dots(w0, w1, y)
        y1, z1 = dots(w2, w3, y)
        y2, z2 = dots(w4, w5, y)
        part[0].store(y0)
        part[1].store(y1)
        part[2].store(y2)
        part[3].store(z0)
        part[4].store(z1)
        part[5].store(z2)
        part[6].store(dot(x, x))
        y0, y1, y2 = collect(part[0]), collect(part[1]), collect(part[2])
        z0, z1, z2 = collect(part[3]), collect(part[4]), collect(part[5])
        inverse = gl.rsqrt(collect(part[6]) / X + eps)
        y0, y1, y2 = y0 * inverse, y1 * inverse, y2 * inverse
        y0, y1, y2 = y0 / (1 + gl.exp(-y0)), y1 / (1 + gl.exp(-y1)), y2 / (1 + gl.exp(-y2))
        y0, y1, y2 = y0 * (z0 * inverse), y1 * (z1 * inverse), y2 * (z2 * inverse)
        publish(shared + 3 * WIDTH + own_pair, pair_up(y0), everywhere, other)
        publish(shared + 4 * WIDTH + own_pair, pair_up(y1), everywhere, other)
        publish(shared + 5 * WIDTH + own_pair, pair_up(y2), everywhere, other)
        bring_chunks(layer, 6 + SLOTS, 12 + SLOTS, layers, all_weights, ring, bars, pid, X, HEADS, KV, D, SLOTS)
        # -- down
        mbarrier.wait(bars[3], layer & 1)
        w0, w1 = take(ring, n + 12, SLOTS), take(ring, n + 13, SLOTS)
        w2 = take(ring, n + 14, SLOTS)
        x, z = poll2(shared + 3 * WIDTH + mine_at + k_all + odd * WIDTH, shared + 5 * WIDTH + mine_at + k_all, fail_ptr)
        other_part.store(cross_dot(w0, w1, x) + dot(w2, z))
        mine = (mine + collect(other_part)).to(bf16).to(gl.float32)
        publish(shared + 6 * WIDTH + own_pair, pair_up(mine), everywhere, other)
        bring_chunks(layer, 12 + SLOTS, 15 + SLOTS, layers, all_weights, ring, bars, pid, X, HEADS, KV, D, SLOTS)
        x_at = shared + 6 * WIDTH + mine_at
    # -- head
    n = layers * CHUNKS
    norm = gl.load(last_norm_ptr.to(gl.pointer_type(i32)) + k_all)
    mbarrier.wait(bars[0], layers & 1)
    w0, w1 = take(ring, n, SLOTS), take(ring, n + 1, SLOTS)
    x = poll(x_at + k_all, fail_ptr)
    y0, y1 = dots(w0, w1, scale_pairs(x, norm, odd))
    part[0].store(y0)
    part[1].store(y1)
    part[2].store(dot(x, x))
    y0, y1 = collect(part[0]), collect(part[1])
    inverse = gl.rsqrt(collect(part[2]) / X + eps)
    at = logits_ptr + pid * 16 + gl.arange(0, 8, gl.SliceLayout(1, TOGETHER))
    gl.store(at, (y0 * inverse).to(bf16))
    gl.store(at + 8, (y1 * inverse).to(bf16))
