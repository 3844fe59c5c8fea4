"""Training and scoring of one run as compiled loops: the equations of `models.py`, differentiated by hand.

Layout. Sequences lie in blocks of LANES = 32, and the place in the block is the innermost axis: every inner loop runs
over 32 numbers that lie side by side, so that it becomes a few vector instructions. Where a batch does not fill its
last block, the places left over read zeros and their errors are set to zero: they add nothing to any sum.

Letters. n steps, F features, H hidden units, T targets, d width, L lanes; `inputs` (n, F, L) and `targets` (T, L) are
one block. `flat` vectors hold a model's parameters in the order of `model.parameters()`. Gradients are sums over
blocks, of the mean over all sequences and targets of the squared error.

Nothing here allocates (`_nrt=False` makes that a compile error), holds the interpreter's lock, or runs for long without
a look at `cancel`, one byte that another thread may set.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numba.core.cpu import CPUTargetOptions

LANES = 32

# "nnan" and "ninf" are left out of fastmath: training that diverges must come to NaN here as in the plain loop.
FAST = {"reassoc", "nsz", "arcp", "contract", "afn"}
PLAIN = {"nogil": True, "fastmath": FAST, "error_model": "numpy", "_nrt": False}
# Of a helper's arrays none overlaps another. Saying so halves the time of a matrix product; numba knows the flag, but
# has no public name for it.
CPUTargetOptions.noalias = CPUTargetOptions.Mapping("noalias")
APART = PLAIN | {"noalias": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
ENTRY = PLAIN | {"cache": True, "no_cfunc_wrapper": True}
# Parts of a kernel that are functions for the reader's sake only: compiled once, as if written where they are used.
PART = PLAIN | {"inline": "always"}

f32 = np.float32
ZERO, HALF, ONE, TWO = f32(0), f32(0.5), f32(1), f32(2)


# ---------------------------------------------------------------------------------------------- elementary functions


@njit(**APART)
def tanh(x):
    """Rational approximation as in Eigen, error below 3e-7: unlike the library's, it vectorises."""
    x = min(max(x, f32(-7.9)), f32(7.9))
    s = x * x
    p = f32(2.00018790482477e-13) + s * f32(-2.76076847742355e-16)
    p = f32(5.12229709037114e-08) + s * (f32(-8.60467152213735e-11) + s * p)
    p = f32(4.89352455891786e-03) + s * (f32(6.37261928875436e-04) + s * (f32(1.48572235717979e-05) + s * p))
    q = f32(1.18534705686654e-04) + s * f32(1.19825839466702e-06)
    q = f32(4.89352518554385e-03) + s * (f32(2.26843463243900e-03) + s * q)
    return x * p / q


@njit(**APART)
def sigmoid(x):
    """σ(x) = (1 + tanh(x/2)) / 2."""
    return HALF + HALF * tanh(HALF * x)


@njit(**APART)
def exp(x):
    """e^x for x ≤ 0, relative error below 1e-6: 2^(k + r) with k whole, its power written as a float's exponent."""
    y = max(x, f32(-87.0)) * f32(1.44269504)
    k = np.floor(y + HALF)
    r = (y - k) * f32(0.69314718)
    p = f32(1 / 6) + r * (f32(1 / 24) + r * (f32(1 / 120) + r * f32(1 / 720)))
    return (ONE + r * (ONE + r * (HALF + r * p))) * np.int32((np.int32(k) + 127) << 23).view(np.float32)


# --------------------------------------------------------------------------------------------------- linear algebra


def product(unit):
    """Matrix products whose innermost length is a multiple of `unit`: told so, they need no loop for a remainder."""

    @njit(**APART)
    def add_product(out, weights, columns):
        """out += weights · columns: (I, K) from (I, J) and (J, K). Four terms a pass, to spare loads."""
        size, length = weights.shape[1], out.shape[1] // unit * unit
        for i in range(weights.shape[0]):
            for j in range(0, size - 3, 4):
                a, b, c, d = weights[i, j], weights[i, j + 1], weights[i, j + 2], weights[i, j + 3]
                for k in range(length):
                    out[i, k] += (
                        a * columns[j, k] + b * columns[j + 1, k] + c * columns[j + 2, k] + d * columns[j + 3, k]
                    )
            for j in range(size // 4 * 4, size):
                a = weights[i, j]
                for k in range(length):
                    out[i, k] += a * columns[j, k]

    @njit(**APART)
    def add_outer(out, left, right):
        """out += left · rightᵀ: (I, J) from (I, K) and (J, K)."""
        size, length = out.shape[1], left.shape[1] // unit * unit
        for i in range(out.shape[0]):
            for j in range(0, size - 3, 4):
                a = b = c = d = ZERO
                for k in range(length):
                    a += left[i, k] * right[j, k]
                    b += left[i, k] * right[j + 1, k]
                    c += left[i, k] * right[j + 2, k]
                    d += left[i, k] * right[j + 3, k]
                out[i, j] += a
                out[i, j + 1] += b
                out[i, j + 2] += c
                out[i, j + 3] += d
            for j in range(size // 4 * 4, size):
                a = ZERO
                for k in range(length):
                    a += left[i, k] * right[j, k]
                out[i, j] += a

    return add_product, add_outer


add_product, add_outer = product(LANES)  # over the lanes of a block
add_short_product, add_short_outer = product(1)  # over the width of attention's vectors


@njit(**APART)
def set_bias(out, bias):
    """out = bias, the same in every column."""
    for i in range(out.shape[0]):
        for k in range(out.shape[1] // LANES * LANES):
            out[i, k] = bias[i]


@njit(**APART)
def set_affine(out, bias, weights, columns):
    """out = bias + weights · columns, the first column of the weights in the same pass as the bias."""
    length = out.shape[1] // LANES * LANES
    for i in range(out.shape[0]):
        a, b = bias[i], weights[i, 0]
        for k in range(length):
            out[i, k] = a + b * columns[0, k]
        for j in range(1, weights.shape[1]):
            a = weights[i, j]
            for k in range(length):
                out[i, k] += a * columns[j, k]


@njit(**APART)
def add_affine_gradient(d_bias, d_weights, d_out, columns):
    """∂bias += Σ ∂out,  ∂weights += ∂out · columnsᵀ, in the same passes as `set_affine`."""
    length = d_out.shape[1] // LANES * LANES
    for i in range(d_out.shape[0]):
        a = b = ZERO
        for k in range(length):
            a += d_out[i, k]
            b += d_out[i, k] * columns[0, k]
        d_bias[i] += a
        d_weights[i, 0] += b
        for j in range(1, d_weights.shape[1]):
            a = ZERO
            for k in range(length):
                a += d_out[i, k] * columns[j, k]
            d_weights[i, j] += a


@njit(**APART)
def add_sums(out, columns):
    """out += the sum over columns: the gradient of a bias."""
    for i in range(columns.shape[0]):
        total = ZERO
        for k in range(columns.shape[1] // LANES * LANES):
            total += columns[i, k]
        out[i] += total


@njit(**APART)
def clear(values):
    for i in range(values.shape[0]):
        for k in range(values.shape[1]):
            values[i, k] = ZERO


@njit(**APART)
def scale(values, factor):
    for i in range(values.shape[0]):
        for k in range(values.shape[1]):
            values[i, k] *= factor


# -------------------------------------------------------------------------------------------- the loss and its update


@njit(**APART)
def set_error(error, prediction, targets, count, share):
    """error = ∂loss/∂prediction = 2 (prediction − target) · share; returns what the block adds to the loss.

    share is 1/(sequences · targets); places from `count` on are empty.
    """
    loss = 0.0
    for t in range(targets.shape[0]):
        for k in range(targets.shape[1]):
            difference = prediction[t, k] - targets[t, k] if k < count else ZERO
            error[t, k] = TWO * share * difference
            loss += difference * difference
    return loss * share


@njit(**APART)
def clip_norm(gradient, largest):
    """torch's clip_grad_norm_: gradient ← gradient · min(1, largest / (|gradient| + 1e-6))."""
    total = 0.0
    for p in range(len(gradient)):
        total += gradient[p] * gradient[p]
    factor = largest / (math.sqrt(total) + 1e-6)
    if not factor >= 1:  # written so that NaN spreads, as it does in torch
        for p in range(len(gradient)):
            gradient[p] *= f32(factor)


@njit(**APART)
def adam(weights, gradient, mean, square, step, rate):
    """Adam (Kingma and Ba 2015) with torch's defaults; steps count from 1.

    m ← 0.9 m + 0.1 g,   v ← 0.999 v + 0.001 g²,   w ← w − rate · m / (1 − 0.9^step) / (√(v / (1 − 0.999^step)) + 1e-8)
    """
    pace, root = f32(rate / (1 - 0.9**step)), f32(1 / math.sqrt(1 - 0.999**step))
    for p in range(len(weights)):
        mean[p] += f32(0.1) * (gradient[p] - mean[p])
        square[p] = f32(0.999) * square[p] + f32(0.001) * gradient[p] * gradient[p]
        weights[p] -= pace * mean[p] / (math.sqrt(square[p]) * root + f32(1e-8))


# ------------------------------------------------------------------------------------------------------------------ RNN
# h_t = φ(a),  a = W_in x_t + b_in + W h_(t−1) + b


@njit(**APART)
def apply_tanh(values):
    for i in range(values.shape[0]):
        for k in range(values.shape[1] // LANES * LANES):
            values[i, k] = tanh(values[i, k])


@njit(**APART)
def apply_rectifier(values):
    for i in range(values.shape[0]):
        for k in range(values.shape[1] // LANES * LANES):
            values[i, k] = ZERO if values[i, k] < 0 else values[i, k]


@njit(**APART)
def rnn_step_backward(hidden, d_hidden, rectified):
    """∂a = ∂h · φ′, where φ′ = 1 − h² for tanh, and 1 where h > 0 for the rectifier. h becomes ∂a."""
    for i in range(hidden.shape[0]):
        if rectified:
            for k in range(hidden.shape[1] // LANES * LANES):
                hidden[i, k] = d_hidden[i, k] if hidden[i, k] > 0 else ZERO
        else:
            for k in range(hidden.shape[1] // LANES * LANES):
                hidden[i, k] = d_hidden[i, k] * (ONE - hidden[i, k] * hidden[i, k])


@njit(**PART)
def rnn_forward(weights, memory, inputs, rectified, cancel):
    w_in, w, b_in, b, _, _ = weights
    hidden, bias = memory[0], memory[11]
    for i in range(len(bias)):
        bias[i] = b_in[i] + b[i]
    clear(hidden[0])
    for t in range(len(inputs)):
        if cancel[0]:
            break
        before, after = hidden[t % len(hidden)], hidden[(t + 1) % len(hidden)]
        set_affine(after, bias, w_in, inputs[t])
        add_product(after, w, before)
        if rectified:
            apply_rectifier(after)
        else:
            apply_tanh(after)


@njit(**PART)
def rnn_backward(weights, gradients, memory, inputs, rectified, cancel):
    """∂W_in = Σ_t ∂a x_tᵀ,  ∂W = Σ_t ∂a h_(t−1)ᵀ,  ∂b = Σ_t ∂a,  ∂h_(t−1) = Wᵀ ∂a"""
    w, hidden, d_hidden = weights[1], memory[0], memory[9]
    d_w_in, d_w, d_b_in, d_b, _, _ = gradients
    for t in range(len(inputs) - 1, -1, -1):
        if cancel[0]:
            break
        d_a = hidden[t + 1]
        rnn_step_backward(d_a, d_hidden, rectified)
        add_affine_gradient(d_b_in, d_w_in, d_a, inputs[t])
        add_outer(d_w, d_a, hidden[t])
        clear(d_hidden)
        add_product(d_hidden, w.T, d_a)
    for i in range(len(d_b)):
        d_b[i] = d_b_in[i]


# ------------------------------------------------------------------------------------------------------------------ GRU
# a = W_in x_t + b_in,  u = W h_(t−1) + b, each three blocks of H rows
# r = σ(a_r + u_r),  z = σ(a_z + u_z),  c = tanh(a_c + r u_c),  h_t = (1 − z) c + z h_(t−1)


@njit(**APART)
def gru_step(reset, update, new, u_reset, u_update, u_new, recalled, before, after):
    """a becomes r, z and c; recalled is u_c, which backward needs."""
    for i in range(before.shape[0]):
        for k in range(before.shape[1] // LANES * LANES):
            r = sigmoid(reset[i, k] + u_reset[i, k])
            z = sigmoid(update[i, k] + u_update[i, k])
            c = tanh(new[i, k] + r * u_new[i, k])
            after[i, k] = c + z * (before[i, k] - c)
            reset[i, k], update[i, k], new[i, k], recalled[i, k] = r, z, c, u_new[i, k]


@njit(**APART)
def gru_step_backward(reset, update, new, u_reset, u_update, u_new, recalled, before, d_hidden):
    """∂a_c = ∂h (1 − z)(1 − c²),  ∂a_z = ∂h (h − c) z (1 − z),  ∂a_r = ∂a_c u_c r (1 − r);  ∂u is the same but for
    ∂u_c = ∂a_c r.  r, z, c become ∂a, u becomes ∂u, and ∂h_t becomes its direct share ∂h_t z of ∂h_(t−1)."""
    for i in range(before.shape[0]):
        for k in range(before.shape[1] // LANES * LANES):
            r, z, c, d = reset[i, k], update[i, k], new[i, k], d_hidden[i, k]
            d_new = d * (ONE - z) * (ONE - c * c)
            d_update = d * (before[i, k] - c) * z * (ONE - z)
            d_reset = d_new * recalled[i, k] * r * (ONE - r)
            reset[i, k], update[i, k], new[i, k] = d_reset, d_update, d_new
            u_reset[i, k], u_update[i, k], u_new[i, k] = d_reset, d_update, d_new * r
            d_hidden[i, k] = d * z


@njit(**PART)
def gru_forward(weights, memory, inputs, rectified, cancel):
    w_in, w, b_in, b, _, _ = weights
    hidden, _, gates, gate, recalled, u, u_gate = memory[:7]
    clear(hidden[0])
    for t in range(len(inputs)):
        if cancel[0]:
            break
        before, after, now = hidden[t % len(hidden)], hidden[(t + 1) % len(hidden)], t % len(gates)
        set_affine(gates[now], b_in, w_in, inputs[t])
        set_bias(u, b)
        add_product(u, w, before)
        r, z, c = gate[now, 0], gate[now, 1], gate[now, 2]
        gru_step(r, z, c, u_gate[0], u_gate[1], u_gate[2], recalled[now], before, after)


@njit(**PART)
def gru_backward(weights, gradients, memory, inputs, rectified, cancel):
    """As for the RNN, with ∂a for what comes from the input and ∂u for what comes from the state."""
    w = weights[1]
    d_w_in, d_w, d_b_in, d_b, _, _ = gradients
    hidden, _, gates, gate, recalled, d_u, u_gate = memory[:7]
    d_hidden = memory[9]
    for t in range(len(inputs) - 1, -1, -1):
        if cancel[0]:
            break
        r, z, c = gate[t, 0], gate[t, 1], gate[t, 2]
        gru_step_backward(r, z, c, u_gate[0], u_gate[1], u_gate[2], recalled[t], hidden[t], d_hidden)
        d_a = gates[t]
        add_affine_gradient(d_b_in, d_w_in, d_a, inputs[t])
        add_outer(d_w, d_u, hidden[t])
        add_sums(d_b, d_u)
        add_product(d_hidden, w.T, d_u)


# ----------------------------------------------------------------------------------------------------------------- LSTM
# a = W_in x_t + b_in + W h_(t−1) + b, four blocks of H rows
# i = σ(a_i),  f = σ(a_f),  g = tanh(a_g),  o = σ(a_o),  c_t = f c_(t−1) + i g,  h_t = o tanh(c_t)


@njit(**APART)
def lstm_step(enter, forget, new, output, before, after, squashed, hidden):
    """a becomes i, f, g and o; squashed is tanh(c_t)."""
    for j in range(before.shape[0]):
        for k in range(before.shape[1] // LANES * LANES):
            i, f = sigmoid(enter[j, k]), sigmoid(forget[j, k])
            g, o = tanh(new[j, k]), sigmoid(output[j, k])
            c = f * before[j, k] + i * g
            s = tanh(c)
            enter[j, k], forget[j, k], new[j, k], output[j, k] = i, f, g, o
            after[j, k], squashed[j, k], hidden[j, k] = c, s, o * s


@njit(**APART)
def lstm_step_backward(enter, forget, new, output, before, squashed, d_hidden, d_cell):
    """∂c_t += ∂h o (1 − tanh²c),  ∂a_i = ∂c g i (1 − i),  ∂a_f = ∂c c_(t−1) f (1 − f),  ∂a_g = ∂c i (1 − g²),
    ∂a_o = ∂h tanh(c) o (1 − o),  ∂c_(t−1) = ∂c f.  i, f, g and o become ∂a."""
    for j in range(before.shape[0]):
        for k in range(before.shape[1] // LANES * LANES):
            i, f, g, o, s = enter[j, k], forget[j, k], new[j, k], output[j, k], squashed[j, k]
            d = d_cell[j, k] + d_hidden[j, k] * o * (ONE - s * s)
            enter[j, k] = d * g * i * (ONE - i)
            forget[j, k] = d * before[j, k] * f * (ONE - f)
            new[j, k] = d * i * (ONE - g * g)
            output[j, k] = d_hidden[j, k] * s * o * (ONE - o)
            d_cell[j, k] = d * f


@njit(**PART)
def lstm_forward(weights, memory, inputs, rectified, cancel):
    w_in, w, b_in, b, _, _ = weights
    hidden, cell, gates, gate, squashed = memory[:5]
    bias = memory[11]
    for i in range(len(bias)):
        bias[i] = b_in[i] + b[i]
    clear(hidden[0])
    clear(cell[0])
    for t in range(len(inputs)):
        if cancel[0]:
            break
        before, after, now = t % len(hidden), (t + 1) % len(hidden), t % len(gates)
        a = gates[now]
        set_affine(a, bias, w_in, inputs[t])
        add_product(a, w, hidden[before])
        i, f, g, o = gate[now, 0], gate[now, 1], gate[now, 2], gate[now, 3]
        lstm_step(i, f, g, o, cell[before], cell[after], squashed[now], hidden[after])


@njit(**PART)
def lstm_backward(weights, gradients, memory, inputs, rectified, cancel):
    """As for the RNN, with ∂c_t carried back beside ∂h_t."""
    w = weights[1]
    d_w_in, d_w, d_b_in, d_b, _, _ = gradients
    hidden, cell, gates, gate, squashed = memory[:5]
    d_hidden, d_cell = memory[9], memory[10]
    clear(d_cell)
    for t in range(len(inputs) - 1, -1, -1):
        if cancel[0]:
            break
        i, f, g, o = gate[t, 0], gate[t, 1], gate[t, 2], gate[t, 3]
        lstm_step_backward(i, f, g, o, cell[t], squashed[t], d_hidden, d_cell)
        d_a = gates[t]
        add_affine_gradient(d_b_in, d_w_in, d_a, inputs[t])
        add_outer(d_w, d_a, hidden[t])
        clear(d_hidden)
        add_product(d_hidden, w.T, d_a)
    for i in range(len(d_b)):
        d_b[i] = d_b_in[i]


@njit(**PART)
def recurrent_prediction(forward, rectified, weights, memory, inputs, cancel):
    """prediction (T, L) = W_out h_n + b_out"""
    forward(weights, memory, inputs, rectified, cancel)
    w_out, b_out = weights[4], weights[5]
    hidden, prediction = memory[0], memory[7]
    set_bias(prediction, b_out)
    add_product(prediction, w_out, hidden[len(inputs) % len(hidden)])


# ------------------------------------------------------------------------------------------------------------ attention
# A = Q K,  scores = (A Pᵀ + Q Cᵀ x_i) / √d,  w = softmax(scores),  prediction = Σ_i w_i x_i


@njit(**APART)
def softmax(scores):
    """Each row becomes positive with sum 1."""
    for t in range(scores.shape[0]):
        row = scores[t]
        top = row[0]
        for i in range(len(row)):
            top = max(top, row[i])
        total = ZERO
        for i in range(len(row)):
            row[i] = exp(row[i] - top)
            total += row[i]
        for i in range(len(row)):
            row[i] /= total


@njit(**APART)
def softmax_backward(weights, d_weights):
    """∂score_i = w_i (∂w_i − Σ_j w_j ∂w_j); ∂w becomes ∂score."""
    for t in range(weights.shape[0]):
        total = ZERO
        for i in range(weights.shape[1]):
            total += weights[t, i] * d_weights[t, i]
        for i in range(weights.shape[1]):
            d_weights[t, i] = weights[t, i] * (d_weights[t, i] - total)


@njit(**APART)
def content_weights(weights, prediction, total, scores, slope, inputs):
    """Softmax over steps in every lane: weights (n, L) of one target, and its prediction (L,)."""
    length, features, lanes = inputs.shape
    for k in range(lanes):
        total[k] = f32(-3e38)  # first the largest score
    for i in range(length):
        for k in range(lanes):
            weights[i, k] = scores[i]
        for f in range(features):
            for k in range(lanes):
                weights[i, k] += slope[f] * inputs[i, f, k]
        for k in range(lanes):
            total[k] = max(total[k], weights[i, k])
    for i in range(length):
        for k in range(lanes):
            weights[i, k] = exp(weights[i, k] - total[k])
    for k in range(lanes):
        total[k] = prediction[k] = ZERO
    for i in range(length):
        for k in range(lanes):
            total[k] += weights[i, k]
            prediction[k] += weights[i, k] * inputs[i, 0, k]
    for k in range(lanes):
        total[k] = ONE / total[k]
        prediction[k] *= total[k]
    for i in range(length):
        for k in range(lanes):
            weights[i, k] *= total[k]


@njit(**APART)
def content_backward(weights, prediction, error, d_scores, d_slope, inputs):
    """∂score_i = w_i (x_i − prediction) ∂prediction, summed over lanes;  ∂slope = Σ_i ∂score_i x_i."""
    length, features, lanes = inputs.shape
    for i in range(length):
        total = ZERO
        for k in range(lanes):
            weights[i, k] *= (inputs[i, 0, k] - prediction[k]) * error[k]
            total += weights[i, k]
        d_scores[i] += total
        for f in range(features):
            total = ZERO
            for k in range(lanes):
                total += weights[i, k] * inputs[i, f, k]
            d_slope[f] += total


@njit(**PART)
def set_scores(weights, memory, factor):
    """What does not depend on the sequence: A (T, d), scores (T, n), and the slope of a score in x, Q Cᵀ/√d (T, F)."""
    positions, key, query, by_content = weights
    projected, scores, slope = memory[0], memory[1], memory[2]
    clear(projected)
    clear(scores)
    clear(slope)
    add_short_product(projected, query, key)
    add_short_outer(scores, projected, positions)
    scale(scores, factor)
    if len(by_content):
        add_short_outer(slope, query, by_content)
        scale(slope, factor)
    else:
        softmax(scores)


@njit(**PART)
def scores_backward(weights, gradients, memory, factor):
    """∂A = ∂scores P/√d,  ∂P = ∂scoresᵀ A/√d,  ∂Q = ∂A Kᵀ + ∂slope C/√d,  ∂K = Qᵀ ∂A,  ∂C = ∂slopeᵀ Q/√d"""
    positions, key, query, by_content = weights
    d_positions, d_key, d_query, d_by_content = gradients
    projected, scores, _, d_projected, d_scores, d_slope = memory[:6]
    if len(by_content):
        scale(d_slope, factor)
        add_short_product(d_query, d_slope, by_content)
        add_short_product(d_by_content, d_slope.T, query)
    else:
        softmax_backward(scores, d_scores)
    scale(d_scores, factor)
    clear(d_projected)
    add_short_product(d_projected, d_scores, positions)
    if len(d_positions):
        add_short_product(d_positions, d_scores.T, projected)
    add_short_outer(d_query, d_projected, key)
    add_short_product(d_key, query.T, d_projected)


# ------------------------------------------------------------------------------------------------------------- training


@njit(**PART)
def update(state, step, rate, clip, loss, losses, moments, kept):
    """Clips, takes Adam's step, writes the loss down, and the weights where this step is one of the moments."""
    flat, gradient, mean, square = state
    if clip < np.inf:
        clip_norm(gradient, clip)
    adam(flat, gradient, mean, square, step, rate)
    losses[step - 1] = loss
    for moment in range(len(moments)):
        if moments[moment] == step:
            for p in range(len(flat)):
                kept[moment, p] = flat[p]


@njit(**PART)
def train_recurrent(
    forward, backward, rectified, weights, gradients, memory, inputs, targets, sequences,
    state, done, steps, rate, clip, losses, moments, kept, cancel,
):  # fmt: skip
    """Trains one run for `steps` more steps, in place.

    Args:
        forward, backward: of the cell. rectified: for an RNN, whether φ is the rectifier.
        weights, gradients: W_in (G H, F), W (G H, H), b_in, b (G H,), W_out (T, H), b_out (T,), views into `state`.
        memory: h_t and c_t (n + 1, H, L), from t = 0; a (n, G H, L), and a view of it by gate (n, G, H, L); what else
            backward needs (n, H, L); u (G H, L), and by gate (G, H, L); prediction, error (T, L); ∂h, ∂c (H, L);
            b_in + b (G H,). For scoring n may be 1: places in time count modulo the memory's.
        inputs, targets: (S, blocks, n, F, L) and (S, blocks, T, L): a batch for every step, or S = 1 for all of them.
        sequences: how many of a batch's places are not empty.
        state: parameters, gradient and Adam's two running means, each flat, (P,).
        done: steps trained before these. losses (all steps,): written from `done` on.
        clip: largest norm of the gradient, infinite for none.
        moments, kept: training steps after which the parameters are copied to the row of `kept`.
    """
    hidden, prediction, error, d_hidden = memory[0], memory[7], memory[8], memory[9]
    gradient, w_out = state[1], weights[4]
    share = f32(1 / (sequences * len(error)))
    for step in range(done, done + steps):
        batch = (step - done) % len(inputs)
        for p in range(len(gradient)):
            gradient[p] = ZERO
        loss = 0.0
        for block in range(inputs.shape[1]):
            x = inputs[batch, block]
            recurrent_prediction(forward, rectified, weights, memory, x, cancel)
            loss += set_error(error, prediction, targets[batch, block], min(LANES, sequences - block * LANES), share)
            add_outer(gradients[4], error, hidden[len(x)])  # prediction = W_out h_n + b_out
            add_sums(gradients[5], error)
            clear(d_hidden)
            add_product(d_hidden, w_out.T, error)
            backward(weights, gradients, memory, x, rectified, cancel)
        if cancel[0]:  # the gradient may be half of one
            break
        update(state, step + 1, rate, clip, loss, losses, moments, kept)


@njit(**ENTRY)
def train_attention(
    rectified, weights, gradients, memory, inputs, targets, sequences,
    state, done, steps, rate, clip, losses, moments, kept, cancel,
):  # fmt: skip
    """The same for attention.

    weights, gradients: P (n, d), K (d, d), Q (T, d), C (F, d); ∂P is empty where positions are not learned, C and ∂C
    where keys are positions alone. memory: A (T, d), scores (T, n), slope (T, F), their gradients, prediction and error
    (T, L), weights over steps (n, L), one row (1, L).
    """
    _, scores, slope, _, d_scores, d_slope, prediction, error, shares, row = memory
    gradient, content = state[1], len(weights[3]) > 0
    length, features = inputs.shape[2:4]
    share, factor = f32(1 / (sequences * len(error))), f32(1 / math.sqrt(len(weights[1])))
    for step in range(done, done + steps):
        batch = (step - done) % len(inputs)
        for p in range(len(gradient)):
            gradient[p] = ZERO
        loss = 0.0
        set_scores(weights, memory, factor)
        clear(d_scores)
        clear(d_slope)
        for block in range(inputs.shape[1]):
            x, y, count = inputs[batch, block], targets[batch, block], min(LANES, sequences - block * LANES)
            if cancel[0]:
                break
            if content:
                for t in range(len(error)):
                    if cancel[0]:
                        break
                    content_weights(shares, prediction[t], row[0], scores[t], slope[t], x)
                    loss += set_error(error[t : t + 1], prediction[t : t + 1], y[t : t + 1], count, share)
                    content_backward(shares, prediction[t], error[t], d_scores[t], d_slope[t], x)
            else:
                values = x.reshape(length, features * LANES)  # its first L columns are the first feature
                clear(prediction)
                add_product(prediction, scores, values)
                loss += set_error(error, prediction, y, count, share)
                add_outer(d_scores, error, values)
        scores_backward(weights, gradients, memory, factor)
        if cancel[0]:
            break
        update(state, step + 1, rate, clip, loss, losses, moments, kept)


# -------------------------------------------------------------------------------------------------------------- scoring


@njit(**APART)
def add_moments(sums, first, prediction, targets, count, fresh):
    """Adds one block to the sums over sequences of (p − y)², p, y, p², y² and p y, for every target, (T, 6).

    p and y count from the very first sequence's, kept in `first` (T, 2): sums of small numbers lose less.
    """
    for t in range(targets.shape[0]):
        if fresh:
            first[t, 0], first[t, 1] = prediction[t, 0], targets[t, 0]
        p0, y0 = first[t, 0], first[t, 1]
        e2 = p1 = y1 = p2 = y2 = py = 0.0
        for k in range(count):
            e, p, y = prediction[t, k] - targets[t, k], prediction[t, k] - p0, targets[t, k] - y0
            e2 += np.float64(e) * e
            p1 += p
            y1 += y
            p2 += np.float64(p) * p
            y2 += np.float64(y) * y
            py += np.float64(p) * y
        sums[t, 0] += e2
        sums[t, 1] += p1
        sums[t, 2] += y1
        sums[t, 3] += p2
        sums[t, 4] += y2
        sums[t, 5] += py


@njit(**PART)
def score_recurrent(forward, rectified, weights, memory, inputs, targets, sequences, scored, sums, first, cancel):
    """Adds the predictions on some sequences in blocks to `sums`, see `add_moments`; `scored` sequences came before."""
    for block in range(len(inputs)):
        recurrent_prediction(forward, rectified, weights, memory, inputs[block], cancel)
        if cancel[0]:
            break
        count = min(LANES, sequences - block * LANES)
        add_moments(sums, first, memory[7], targets[block], count, scored + block == 0)


@njit(**ENTRY)
def score_attention(rectified, weights, memory, inputs, targets, sequences, scored, sums, first, cancel):
    """The same for attention."""
    _, scores, slope, _, _, _, prediction, _, shares, row = memory
    _, length, features, _ = inputs.shape
    set_scores(weights, memory, f32(1 / math.sqrt(len(weights[1]))))
    for block in range(len(inputs)):
        if len(weights[3]):
            for t in range(len(prediction)):
                if cancel[0]:
                    break
                content_weights(shares, prediction[t], row[0], scores[t], slope[t], inputs[block])
        else:
            clear(prediction)
            add_product(prediction, scores, inputs[block].reshape(length, features * LANES))
        if cancel[0]:
            break
        count = min(LANES, sequences - block * LANES)
        add_moments(sums, first, prediction, targets[block], count, scored + block == 0)


# --------------------------------------------------------------------------------------------------------- entry points


@njit(**ENTRY)
def train_rnn(
    rectified, weights, gradients, memory, inputs, targets, sequences,
    state, done, steps, rate, clip, losses, moments, kept, cancel,
):  # fmt: skip
    train_recurrent(
        rnn_forward, rnn_backward, rectified, weights, gradients, memory, inputs, targets, sequences,
        state, done, steps, rate, clip, losses, moments, kept, cancel,
    )  # fmt: skip


@njit(**ENTRY)
def score_rnn(rectified, weights, memory, inputs, targets, sequences, scored, sums, first, cancel):
    score_recurrent(rnn_forward, rectified, weights, memory, inputs, targets, sequences, scored, sums, first, cancel)


@njit(**ENTRY)
def train_gru(
    rectified, weights, gradients, memory, inputs, targets, sequences,
    state, done, steps, rate, clip, losses, moments, kept, cancel,
):  # fmt: skip
    train_recurrent(
        gru_forward, gru_backward, rectified, weights, gradients, memory, inputs, targets, sequences,
        state, done, steps, rate, clip, losses, moments, kept, cancel,
    )  # fmt: skip


@njit(**ENTRY)
def score_gru(rectified, weights, memory, inputs, targets, sequences, scored, sums, first, cancel):
    score_recurrent(gru_forward, rectified, weights, memory, inputs, targets, sequences, scored, sums, first, cancel)


@njit(**ENTRY)
def train_lstm(
    rectified, weights, gradients, memory, inputs, targets, sequences,
    state, done, steps, rate, clip, losses, moments, kept, cancel,
):  # fmt: skip
    train_recurrent(
        lstm_forward, lstm_backward, rectified, weights, gradients, memory, inputs, targets, sequences,
        state, done, steps, rate, clip, losses, moments, kept, cancel,
    )  # fmt: skip


@njit(**ENTRY)
def score_lstm(rectified, weights, memory, inputs, targets, sequences, scored, sums, first, cancel):
    score_recurrent(lstm_forward, rectified, weights, memory, inputs, targets, sequences, scored, sums, first, cancel)


VECTOR, TABLE, BLOCKS = "f4[::1]", "f4[:, ::1]", "f4[:, :, ::1]"
RECURRENT = f"Tuple(({TABLE}, {TABLE}, {VECTOR}, {VECTOR}, {TABLE}, {VECTOR}))"
ATTENTION = f"UniTuple({TABLE}, 4)"
STATE = f"UniTuple({VECTOR}, 4)"
GATES = "f4[:, :, :, ::1]"
RECURRENT_MEMORY = (
    f"Tuple(({BLOCKS}, {BLOCKS}, {BLOCKS}, {GATES}, {BLOCKS}, {TABLE}, {BLOCKS}, {', '.join([TABLE] * 4)}, {VECTOR}))"
)
ATTENTION_MEMORY = f"UniTuple({TABLE}, 10)"
BATCHES = "f4[:, :, :, :, ::1], f4[:, :, :, ::1], i8"
TEST = "f4[:, :, :, ::1], f4[:, :, ::1], i8, i8, f8[:, ::1], f4[:, ::1], u1[::1]"
RUN = f"{STATE}, i8, i8, f8, f8, {VECTOR}, i8[::1], {TABLE}, u1[::1]"


def signatures(weights: str, memory: str) -> tuple[str, str]:
    """Of training and of scoring."""
    return f"void(b1, {weights}, {weights}, {memory}, {BATCHES}, {RUN})", f"void(b1, {weights}, {memory}, {TEST})"


# For each model how a run is trained and scored. Compiled, or loaded from disk, by `prepare` and not before.
ENTRIES = {
    "rnn": (train_rnn, score_rnn),
    "attention": (train_attention, score_attention),
    "gru": (train_gru, score_gru),
    "lstm": (train_lstm, score_lstm),
}


def prepare(model: str) -> None:
    """Compiles a model's two kernels, or loads them from numba's cache."""
    types = (ATTENTION, ATTENTION_MEMORY) if model == "attention" else (RECURRENT, RECURRENT_MEMORY)
    for kernel, signature in zip(ENTRIES[model], signatures(*types), strict=True):
        kernel.compile(signature)
