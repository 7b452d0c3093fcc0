"""The encoder's sublayers as GPU kernels: attention and MLP, forward and backward, each one pass.

What a wide ViT computes is arithmetic; a narrow one (192) moves memory. These kernels keep what is
between two matrix products on the chip: scores and probabilities, the MLP's hidden layer forward,
its activation and derivative backward, and the column sums that are bias gradients. Nothing is
saved but inputs and outputs. `fast.py` puts them together; only the recorded step uses them.
"""

from typing import Any

import triton
import triton.language as tl

jit: Any = triton.jit  # a type checker would read kernels as Python
LOG2E = tl.constexpr(1.4426950408889634)
# Block sizes, then warps and pipeline stages: what fits the registers of sm_90, not yet timed.
ATTEND_FORWARD = (128, 64, 8, 2)  # queries, keys
ATTEND_BACKWARD = (32, 256, 128, True, 8, 2, None)  # queries, keys, rows at once, transposed
MLP_FORWARD = (128, 64, 8, 2)  # rows, hidden units
MLP_BACKWARD = (128, 64, 8, 2)  # rows, hidden units


@jit
def _gelu(x):
    """x * Phi(x) and its derivative; Phi to 1.5e-7, with the one exponential both need."""
    # Abramowitz and Stegun 7.1.26: erfc(|x| / sqrt 2) = polynomial(t) * exp(-x^2 / 2).
    t = 1.0 / (1.0 + 0.23164189 * tl.abs(x))
    gauss = tl.exp2(x * x * (-0.5 * LOG2E))
    poly = t * (
        0.127414796
        + t * (-0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145)))
    )
    tail = poly * gauss
    phi = tl.where(x > 0, 1.0 - tail, tail)
    return x * phi, phi + x * gauss * 0.3989422804


@jit
def mlp_forward_kernel(
    x, w1, b1, w2, b2, out, xhat, rstd_out, rows, eps,
    A: tl.constexpr, B: tl.constexpr, HIDDEN: tl.constexpr, ROWS: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """LayerNorm, up, GELU, down, residual of ROWS rows; their columns go in two pieces, A and B."""
    dtype = x.dtype.element_ty
    first = tl.program_id(0).to(tl.int64) * ROWS
    x += first * (A + B)
    out += first * (A + B)
    xhat += first * (A + B)
    rstd_out += first
    row = tl.arange(0, ROWS)
    inside = row < rows - first
    a, b, h = tl.arange(0, A), A + tl.arange(0, B), tl.arange(0, H)
    at_a = row[:, None] * (A + B) + a[None, :]
    at_b = row[:, None] * (A + B) + b[None, :]
    xa = tl.load(x + at_a, mask=inside[:, None], other=0.0).to(tl.float32)
    xb = tl.load(x + at_b, mask=inside[:, None], other=0.0).to(tl.float32)
    mean = (tl.sum(xa, 1) + tl.sum(xb, 1)) / (A + B)
    xa -= mean[:, None]
    xb -= mean[:, None]
    rstd = tl.rsqrt((tl.sum(xa * xa, 1) + tl.sum(xb * xb, 1)) / (A + B) + eps)
    tl.store(rstd_out + row, rstd, mask=inside)
    tl.store(xhat + at_a, (xa * rstd[:, None]).to(dtype), mask=inside[:, None])
    tl.store(xhat + at_b, (xb * rstd[:, None]).to(dtype), mask=inside[:, None])
    # Backward wants them anyway; and what is loaded is multiplied from shared memory, which leaves
    # the registers to the sums.
    tl.debug_barrier()
    ya = tl.load(xhat + at_a, mask=inside[:, None], other=0.0)
    yb = tl.load(xhat + at_b, mask=inside[:, None], other=0.0)
    acc_a = tl.zeros([ROWS, A], dtype=tl.float32)
    acc_b = tl.zeros([ROWS, B], dtype=tl.float32)
    for start in range(0, HIDDEN, H):
        hidden = start + h
        w1a = tl.load(w1 + hidden[None, :] * (A + B) + a[:, None])
        w1b = tl.load(w1 + hidden[None, :] * (A + B) + b[:, None])
        w2a = tl.load(w2 + a[None, :] * HIDDEN + hidden[:, None])
        w2b = tl.load(w2 + b[None, :] * HIDDEN + hidden[:, None])
        pre = tl.dot(yb, w1b, tl.dot(ya, w1a)) + tl.load(b1 + hidden)[None, :]
        act, _slope = _gelu(pre)
        act = act.to(dtype)
        acc_a = tl.dot(act, w2a, acc_a)
        acc_b = tl.dot(act, w2b, acc_b)
    acc_a += tl.load(b2 + a)[None, :]
    acc_b += tl.load(b2 + b)[None, :]
    acc_a += tl.load(x + at_a, mask=inside[:, None], other=0.0).to(tl.float32)
    acc_b += tl.load(x + at_b, mask=inside[:, None], other=0.0).to(tl.float32)
    tl.store(out + at_a, acc_a.to(dtype), mask=inside[:, None])
    tl.store(out + at_b, acc_b.to(dtype), mask=inside[:, None])


@jit
def mlp_backward_kernel(
    xhat, rstd_in, dout, w1, b1, w2, act_out, dpre_out, dx, db1, db2, rows,
    A: tl.constexpr, B: tl.constexpr, HIDDEN: tl.constexpr, ROWS: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """Recomputes the hidden layer of ROWS rows and goes back through it and the LayerNorm."""
    dtype = xhat.dtype.element_ty
    tile = tl.program_id(0)
    first = tile.to(tl.int64) * ROWS
    xhat += first * (A + B)
    rstd_in += first
    dout += first * (A + B)
    act_out += first * HIDDEN
    dpre_out += first * HIDDEN
    dx += first * (A + B)
    row = tl.arange(0, ROWS)
    inside = row < rows - first
    a, b, h = tl.arange(0, A), A + tl.arange(0, B), tl.arange(0, H)
    at_a = row[:, None] * (A + B) + a[None, :]
    at_b = row[:, None] * (A + B) + b[None, :]
    ya = tl.load(xhat + at_a, mask=inside[:, None], other=0.0)
    yb = tl.load(xhat + at_b, mask=inside[:, None], other=0.0)
    ga = tl.load(dout + at_a, mask=inside[:, None], other=0.0)
    gb = tl.load(dout + at_b, mask=inside[:, None], other=0.0)
    tl.store(db2 + tile * (A + B) + a, tl.sum(ga.to(tl.float32), 0))
    tl.store(db2 + tile * (A + B) + b, tl.sum(gb.to(tl.float32), 0))
    acc_a = tl.zeros([ROWS, A], dtype=tl.float32)
    acc_b = tl.zeros([ROWS, B], dtype=tl.float32)
    for start in range(0, HIDDEN, H):
        hidden = start + h
        w1a = tl.load(w1 + hidden[:, None] * (A + B) + a[None, :])
        w1b = tl.load(w1 + hidden[:, None] * (A + B) + b[None, :])
        w2a = tl.load(w2 + a[:, None] * HIDDEN + hidden[None, :])
        w2b = tl.load(w2 + b[:, None] * HIDDEN + hidden[None, :])
        pre = tl.dot(yb, tl.trans(w1b), tl.dot(ya, tl.trans(w1a))) + tl.load(b1 + hidden)[None, :]
        dact = tl.dot(gb, w2b, tl.dot(ga, w2a))
        act, slope = _gelu(pre)
        dpre = dact * slope
        tl.store(db1 + tile * HIDDEN + hidden, tl.sum(dpre, 0))
        dpre = dpre.to(dtype)
        to = row[:, None] * HIDDEN + hidden[None, :]
        tl.store(act_out + to, act.to(dtype), mask=inside[:, None])
        tl.store(dpre_out + to, dpre, mask=inside[:, None])
        acc_a = tl.dot(dpre, w1a, acc_a)
        acc_b = tl.dot(dpre, w1b, acc_b)
    # Back through the LayerNorm: what changes a row's mean or its length is lost.
    ya32 = tl.load(xhat + at_a, mask=inside[:, None], other=0.0).to(tl.float32)
    yb32 = tl.load(xhat + at_b, mask=inside[:, None], other=0.0).to(tl.float32)
    rstd = tl.load(rstd_in + row, mask=inside, other=0.0)
    mean = (tl.sum(acc_a, 1) + tl.sum(acc_b, 1)) / (A + B)
    along = (tl.sum(acc_a * ya32, 1) + tl.sum(acc_b * yb32, 1)) / (A + B)
    acc_a = (acc_a - mean[:, None] - ya32 * along[:, None]) * rstd[:, None]
    acc_b = (acc_b - mean[:, None] - yb32 * along[:, None]) * rstd[:, None]
    acc_a += tl.load(dout + at_a, mask=inside[:, None], other=0.0).to(tl.float32)
    acc_b += tl.load(dout + at_b, mask=inside[:, None], other=0.0).to(tl.float32)
    tl.store(dx + at_a, acc_a.to(dtype), mask=inside[:, None])
    tl.store(dx + at_b, acc_b.to(dtype), mask=inside[:, None])


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
