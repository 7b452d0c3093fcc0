"""The encoder's sublayers as GPU kernels: attention, and what joins the MLP's products to its GELU.

What a wide ViT computes is arithmetic; a narrow one (192) moves memory. These kernels keep on the
chip what is between two matrix products: scores and probabilities, the MLP before its GELU, that
layer's gradient, and the column sums that are bias gradients. A whole MLP in one kernel was slower
than the library's products on an H200. `fast.py` puts these together; only the recorded step uses
them.
"""

from typing import Any

import triton
import triton.language as tl

jit: Any = triton.jit  # a type checker would read kernels as Python
LOG2E = tl.constexpr(1.4426950408889634)
# Block sizes, then warps and pipeline stages: the fastest of some ten tried on an H200.
ATTEND_FORWARD = (64, 64, 4, 3)  # queries, keys
ATTEND_BACKWARD = (32, 256, 128, True, 8, 1, None)  # queries, keys, rows at once, transposed
# Rows, hidden units at once, programs that share the rows; not timed yet, like the warps below.
UP = (64, 64, 1, 4, 1)
DOWN_BACKWARD = (128, 64, 2, 8, 2)
FEW_FORWARD = (4, 1)  # warps for up to 32 tokens, for more
FEW_BACKWARD = (4, 4)


@jit
def _gelu(x):
    """x * Phi(x) and its derivative; Phi to 7.5e-8, with the one exponential both need.

    A hundred million of them a layer: every operation here is 3 us of an H200.
    """
    # Abramowitz and Stegun 26.2.17: Phi(-|x|) = polynomial(t) * density(x).
    root = tl.rsqrt(1.0 + 0.2316419 * tl.abs(x))  # one instruction, unlike a division
    t = root * root
    density = tl.exp2(x * x * (-0.5 * LOG2E) - 1.325748065)
    poly = t * (
        0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    )
    tail = poly * density
    phi = tl.where(x > 0, 1.0 - tail, tail)
    return x * phi, phi + x * density


@jit
def up_kernel(
    x, w, bias, act_out, slope_out, rows,
    A: tl.constexpr, B: tl.constexpr, HIDDEN: tl.constexpr,
    ROWS: tl.constexpr, H: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """GELU of x @ w^T + bias, and its slope there; columns of x go in two pieces, A and B.

    The slope is all that backward wants of the sum: storing it instead saves computing it twice.
    """
    dtype = x.dtype.element_ty
    first = (tl.program_id(0) // SHARE).to(tl.int64) * ROWS
    begin = (tl.program_id(0) % SHARE) * (HIDDEN // SHARE)
    x += first * (A + B)
    act_out += first * HIDDEN
    slope_out += first * HIDDEN
    row = tl.arange(0, ROWS)
    inside = (row < rows - first)[:, None]
    a, b, h = tl.arange(0, A), A + tl.arange(0, B), tl.arange(0, H)
    xa = tl.load(x + row[:, None] * (A + B) + a[None, :], mask=inside, other=0.0)
    xb = tl.load(x + row[:, None] * (A + B) + b[None, :], mask=inside, other=0.0)
    for start in range(0, HIDDEN // SHARE, H):
        hidden = begin + start + h
        wa = tl.load(w + hidden[None, :] * (A + B) + a[:, None])
        wb = tl.load(w + hidden[None, :] * (A + B) + b[:, None])
        shift = tl.load(bias + hidden)
        act, slope = _gelu(tl.dot(xb, wb, tl.dot(xa, wa)) + shift[None, :])
        to = row[:, None] * HIDDEN + hidden[None, :]
        tl.store(act_out + to, act.to(dtype), mask=inside)
        tl.store(slope_out + to, slope.to(dtype), mask=inside)


@jit
def down_backward_kernel(
    grad, w, slope_in, dpre_out, dbias, rows,
    A: tl.constexpr, B: tl.constexpr, HIDDEN: tl.constexpr,
    ROWS: tl.constexpr, H: tl.constexpr, SHARE: tl.constexpr,
):  # fmt: skip
    """grad @ w times the slope, the gradient before the GELU, and its sums over ROWS rows."""
    dtype = grad.dtype.element_ty
    tile = tl.program_id(0) // SHARE
    first = tile.to(tl.int64) * ROWS
    begin = (tl.program_id(0) % SHARE) * (HIDDEN // SHARE)
    grad += first * (A + B)
    slope_in += first * HIDDEN
    dpre_out += first * HIDDEN
    row = tl.arange(0, ROWS)
    inside = (row < rows - first)[:, None]
    a, b, h = tl.arange(0, A), A + tl.arange(0, B), tl.arange(0, H)
    ga = tl.load(grad + row[:, None] * (A + B) + a[None, :], mask=inside, other=0.0)
    gb = tl.load(grad + row[:, None] * (A + B) + b[None, :], mask=inside, other=0.0)
    for start in range(0, HIDDEN // SHARE, H):
        hidden = begin + start + h
        at = row[:, None] * HIDDEN + hidden[None, :]
        slope = tl.load(slope_in + at, mask=inside, other=0.0)  # on its way during the product
        wa = tl.load(w + a[:, None] * HIDDEN + hidden[None, :])
        wb = tl.load(w + b[:, None] * HIDDEN + hidden[None, :])
        dpre = tl.dot(gb, wb, tl.dot(ga, wa)) * slope.to(tl.float32)
        tl.store(dpre_out + at, dpre.to(dtype), mask=inside)
        tl.store(dbias + tile * HIDDEN + hidden, tl.sum(dpre, 0))


@jit
def attend_forward_kernel(
    qkv, out, lse, scale,
    HEADS: tl.constexpr, D: tl.constexpr, PATCHES: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """One block of Q patch queries of one head of one frame, or (last program) the class query.

    Patches are a round number; the class token, which makes it an odd one, starts the softmax.
    """
    dtype = qkv.dtype.element_ty
    block, frame, head = tl.program_id(0), tl.program_id(1) // HEADS, tl.program_id(1) % HEADS
    d, key = tl.arange(0, D), tl.arange(0, K)
    row: tl.constexpr = 3 * HEADS * D
    base = qkv + frame.to(tl.int64) * (PATCHES + 1) * row + head * D
    keys, values = base + HEADS * D, base + 2 * HEADS * D
    out += frame.to(tl.int64) * (PATCHES + 1) * HEADS * D + head * D
    lse += (frame * HEADS + head) * (PATCHES + 1)
    kc = tl.load(keys + d).to(tl.float32)
    vc = tl.load(values + d).to(tl.float32)
    if block < PATCHES // Q:
        token = 1 + block * Q + tl.arange(0, Q)
        q = tl.load(base + token[:, None] * row + d[None, :])
        top = tl.sum(q.to(tl.float32) * kc[None, :], 1) * scale
        total = tl.full([Q], 1.0, dtype=tl.float32)
        acc = tl.zeros([Q, D], dtype=tl.float32) + vc[None, :]
        for start in range(1, PATCHES + 1, K):
            k = tl.load(keys + (start + key)[None, :] * row + d[:, None])
            v = tl.load(values + (start + key)[:, None] * row + d[None, :])
            s = tl.dot(q, k) * scale
            new = tl.maximum(top, tl.max(s, 1))
            p = tl.exp2(s - new[:, None])
            keep = tl.exp2(top - new)
            total = total * keep + tl.sum(p, 1)
            acc = tl.dot(p.to(dtype), v, acc * keep[:, None])
            top = new
        acc /= total[:, None]
        tl.store(out + token[:, None] * (HEADS * D) + d[None, :], acc.to(dtype))
        tl.store(lse + token, top + tl.log2(total))
    else:
        q1 = tl.load(base + d).to(tl.float32)
        top1 = tl.sum(q1 * kc, 0) * scale
        total1 = top1 * 0.0 + 1.0
        acc1 = vc
        for start in range(1, PATCHES + 1, K):
            k = tl.load(keys + (start + key)[:, None] * row + d[None, :]).to(tl.float32)
            v = tl.load(values + (start + key)[:, None] * row + d[None, :]).to(tl.float32)
            s1 = tl.sum(k * q1[None, :], 1) * scale
            new1 = tl.maximum(top1, tl.max(s1, 0))
            p1 = tl.exp2(s1 - new1)
            keep1 = tl.exp2(top1 - new1)
            total1 = total1 * keep1 + tl.sum(p1, 0)
            acc1 = acc1 * keep1 + tl.sum(p1[:, None] * v, 0)
            top1 = new1
        tl.store(out + d, (acc1 / total1).to(dtype))
        tl.store(lse, top1 + tl.log2(total1))


@jit
def _class_key(
    base, dbase, grad, seen, lse, side, scale, slope,
    C: tl.constexpr, D: tl.constexpr, PATCHES: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """The class key's gradients; leaves delta and its score's gradient, per query, in `side`."""
    d = tl.arange(0, D)
    kc = tl.load(base + C + d).to(tl.float32)
    vc = tl.load(base + 2 * C + d).to(tl.float32)
    # The class token's own query first, then the patches'.
    q1 = tl.load(base + d).to(tl.float32)
    g1 = tl.load(grad + d).to(tl.float32)
    delta1 = tl.sum(g1 * tl.load(seen + d).to(tl.float32), 0)
    p1 = tl.exp2(tl.sum(q1 * kc, 0) * scale - tl.load(lse))
    ds1 = p1 * (tl.sum(g1 * vc, 0) - delta1)
    dk, dv = ds1 * q1, p1 * g1
    for start in range(1, PATCHES + 1, R):
        token = start + tl.arange(0, R)
        at = token[:, None] * C + d[None, :]
        q = tl.load(base + token[:, None] * (3 * C) + d[None, :]).to(tl.float32)
        g = tl.load(grad + at).to(tl.float32)
        delta = tl.sum(g * tl.load(seen + at).to(tl.float32), 1)
        p = tl.exp2(tl.sum(q * kc[None, :], 1) * scale - tl.load(lse + token))
        ds = p * (tl.sum(g * vc[None, :], 1) - delta)
        dk += tl.sum(ds[:, None] * q, 0)
        dv += tl.sum(p[:, None] * g, 0)
        tl.store(side + token, delta)
        tl.store(side + (PATCHES + 1) + token, ds)
    tl.store(dbase + C + d, (dk * slope).to(base.dtype.element_ty))
    tl.store(dbase + 2 * C + d, dv.to(base.dtype.element_ty))
    return delta1, ds1


@jit
def attend_backward_kernel(
    qkv, seen, grad, lse, side, dqkv, dbias, scale, slope,
    HEADS: tl.constexpr, D: tl.constexpr, PATCHES: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
    R: tl.constexpr, FLIP: tl.constexpr,
):  # fmt: skip
    """One head of one frame: K patch keys stay while queries come by, then the next K.

    What a query has gathered waits in `dqkv` between its visits. FLIP: its gradient transposed.
    """
    dtype = qkv.dtype.element_ty
    frame, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    d, key, query = tl.arange(0, D), tl.arange(0, K), tl.arange(0, Q)
    C: tl.constexpr = HEADS * D
    ROW: tl.constexpr = 3 * C
    begin = frame.to(tl.int64) * (PATCHES + 1)
    base = qkv + begin * ROW + head * D
    dbase = dqkv + begin * ROW + head * D
    seen += begin * C + head * D
    grad += begin * C + head * D
    lse += (frame * HEADS + head) * (PATCHES + 1)
    side += (frame * HEADS + head) * 2 * (PATCHES + 1)
    dbias += frame * C + head * D

    delta_c, ds_c = _class_key(base, dbase, grad, seen, lse, side, scale, slope, C, D, PATCHES, R)
    dqc = ds_c * tl.load(base + C + d).to(tl.float32)
    if FLIP:
        sum_q = tl.zeros([D, Q], dtype=tl.float32)
    else:
        sum_q = tl.zeros([Q, D], dtype=tl.float32)
    for block in range(1, PATCHES + 1, K):
        keys = (block + key)[:, None] * ROW + d[None, :]
        k = tl.load(base + C + keys)
        v = tl.load(base + 2 * C + keys)
        qc = tl.load(base + d).to(tl.float32)
        gc = tl.load(grad + d).to(tl.float32)
        p1 = tl.exp2(tl.sum(k.to(tl.float32) * qc[None, :], 1) * scale - tl.load(lse))
        ds1 = p1 * (tl.sum(v.to(tl.float32) * gc[None, :], 1) - delta_c)
        dqc += tl.sum(ds1[:, None] * k.to(tl.float32), 0)
        dk = ds1[:, None] * qc[None, :]
        dv = p1[:, None] * gc[None, :]
        once = tl.where(block == 1, 1.0, 0.0)  # the class key counts once
        tl.debug_barrier()  # what one thread wrote of `side` and dq another reads
        for start in range(1, PATCHES + 1, Q):
            token = start + query
            q = tl.load(base + token[:, None] * ROW + d[None, :])
            g = tl.load(grad + token[:, None] * C + d[None, :])
            p = tl.exp2(tl.dot(k, tl.trans(q)) * scale - tl.load(lse + token)[None, :])
            dv = tl.dot(p.to(dtype), g, dv)
            ds = (p * (tl.dot(v, tl.trans(g)) - tl.load(side + token)[None, :])).to(dtype)
            dk = tl.dot(ds, q, dk)
            kc = tl.load(base + C + d).to(tl.float32)
            ds_k = tl.load(side + (PATCHES + 1) + token) * once
            if FLIP:
                dq = tl.dot(tl.trans(k), ds) + ds_k[None, :] * kc[:, None]
                at = dbase + token[None, :] * ROW + d[:, None]
            else:
                dq = tl.dot(tl.trans(ds), k) + ds_k[:, None] * kc[None, :]
                at = dbase + token[:, None] * ROW + d[None, :]
            dq *= slope
            sum_q += dq
            if K < PATCHES:
                dq += tl.load(at, mask=tl.full(dq.shape, True, tl.int1) & (block > 1), other=0.0)
            tl.store(at, dq.to(dtype))
        tl.store(dbase + C + keys, (dk * slope).to(dtype))
        tl.store(dbase + 2 * C + keys, dv.to(dtype))

    dqc *= slope
    tl.store(dbase + d, dqc.to(dtype))
    if FLIP:
        tl.store(dbias + d, tl.sum(sum_q, 1) + dqc)
    else:
        tl.store(dbias + d, tl.sum(sum_q, 0) + dqc)


@jit
def _few(base, real, token, ROW: tl.constexpr, D: tl.constexpr):
    """Head dimensions of all tokens, zero where padding is."""
    at = token[:, None] * ROW + tl.arange(0, D)[None, :]
    return tl.load(base + at, mask=real[:, None], other=0.0)


@jit
def _few_weights(q, k, real, scale):
    """Each query's softmax; padding keys weigh nothing."""
    s = tl.where(real[None, :], tl.dot(q, tl.trans(k)) * scale, float("-inf"))
    p = tl.exp2(s - tl.max(s, 1)[:, None])
    return p / tl.sum(p, 1)[:, None]


@jit
def few_forward_kernel(
    qkv, out, scale,
    HEADS: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """One head of one frame whose tokens, padded to PAD, are one block."""
    frame, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    C: tl.constexpr = HEADS * D
    token = tl.arange(0, PAD)
    real = token < TOKENS
    begin = frame.to(tl.int64) * TOKENS
    base = qkv + begin * 3 * C + head * D
    q = _few(base, real, token, 3 * C, D)
    k = _few(base + C, real, token, 3 * C, D)
    v = _few(base + 2 * C, real, token, 3 * C, D)
    mixed = tl.dot(_few_weights(q, k, real, scale).to(v.dtype), v)
    at = token[:, None] * C + tl.arange(0, D)[None, :]
    tl.store(out + begin * C + head * D + at, mixed.to(v.dtype), mask=real[:, None])


@jit
def few_backward_kernel(
    qkv, grad, dqkv, dbias, scale, slope,
    HEADS: tl.constexpr, D: tl.constexpr, TOKENS: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    """The same backward: one block, so its weights are computed again and nothing is summed up."""
    frame, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    C: tl.constexpr = HEADS * D
    token = tl.arange(0, PAD)
    real = token < TOKENS
    begin = frame.to(tl.int64) * TOKENS
    base = qkv + begin * 3 * C + head * D
    q = _few(base, real, token, 3 * C, D)
    k = _few(base + C, real, token, 3 * C, D)
    v = _few(base + 2 * C, real, token, 3 * C, D)
    g = _few(grad + begin * C + head * D, real, token, C, D)
    p = _few_weights(q, k, real, scale)
    dp = tl.dot(g, tl.trans(v))
    ds = (p * (dp - tl.sum(p * dp, 1)[:, None])).to(q.dtype)
    to = dqkv + begin * 3 * C + head * D + token[:, None] * (3 * C) + tl.arange(0, D)[None, :]
    dv = tl.dot(tl.trans(p.to(q.dtype)), g)
    tl.store(to + 2 * C, dv.to(q.dtype), mask=real[:, None])
    dk = tl.dot(tl.trans(ds), q) * slope
    tl.store(to + C, dk.to(q.dtype), mask=real[:, None])
    dq = tl.dot(ds, k) * slope
    tl.store(to, dq.to(q.dtype), mask=real[:, None])
    tl.store(dbias + frame * C + head * D + tl.arange(0, D), tl.sum(dq, 0))
