"""The lesson's two models before their kernels are compiled: ten weight seeds as one stack, in plain torch.

Ten seeds cost little more than one, so a run is trained with its neighbours (seeds 1 to 10, 11 to 20, …), which are
then there when they are asked for. Letters as in `kernels`, and S = 10 runs in a stack.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Generator, Tensor
from torch.nn.utils import parameters_to_vector

from explorer.config import SEED_LIMIT, RunConfig
from explorer.models import build
from explorer.tasks import task_named
from explorer.training import Cancelled, Listener, Score, Trained, moments, scored

SEEDS = 10  # runs in a stack
SCORE_SEQUENCES = 512  # scored at once
LIMIT = 2**23  # numbers that a training step may hold
KEPT = 24  # stacks whose runs are kept for those who ask next

_lock = threading.Lock()
_locks: dict[RunConfig, threading.Lock] = {}
_kept: OrderedDict[RunConfig, list[tuple[Trained, Score]]] = OrderedDict()


def supports(config: RunConfig) -> bool:
    """The RNN as it starts by default and attention as the lesson has it, where a stack fits into memory."""
    lesson = ("attention", "learned", "position")
    known = config.model == "rnn" or (config.model, config.positions, config.keys) == lesson
    plain = config.start == "default" and config.clip is None and not config.curriculum and config.steps > 0
    size = SEEDS * config.window * config.sequences * (config.hidden if config.model == "rnn" else 1)
    return known and plain and size <= LIMIT


def run(
    config: RunConfig, cancelled: Callable[[], bool] = lambda: False, listen: Listener | None = None
) -> tuple[Trained, Score]:
    """As `engine.run`; `listen` is called after every step.

    Raises:
        Cancelled: `cancelled` said so.
    """
    torch.set_num_threads(1)
    first = (config.init_seed - 1) // SEEDS * SEEDS + 1
    stack = replace(config, init_seed=min(max(first, 0), SEED_LIMIT - SEEDS + 1))
    with _lock:
        lock = _locks.setdefault(stack, threading.Lock())
    while not lock.acquire(timeout=0.05):
        if cancelled():
            raise Cancelled
    try:
        if (runs := _kept.get(stack)) is None:
            runs = _train(stack, cancelled, listen)
            with _lock:
                _kept[stack] = runs
                while len(_kept) > KEPT:
                    _locks.pop(_kept.popitem(last=False)[0], None)
        return runs[config.init_seed - stack.init_seed]
    finally:
        lock.release()


def _train(config: RunConfig, cancelled: Callable[[], bool], listen: Listener | None) -> list[tuple[Trained, Score]]:
    task = task_named(config.task)
    models = [
        build(replace(config, init_seed=config.init_seed + place), task.shape(config.window)) for place in range(SEEDS)
    ]
    shapes = [parameter.shape for parameter in models[0].parameters()]
    flat = torch.stack([parameters_to_vector(model.parameters()).detach() for model in models]).requires_grad_()
    predict = _rnn if config.model == "rnn" else _attention

    def predictions(inputs: Tensor) -> Tensor:  # (S, B, T)
        parts = flat.split([shape.numel() for shape in shapes], 1)
        return predict(*(part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)), inputs)

    data = Generator().manual_seed(config.data_seed)
    inputs, targets = task.sample(config.sequences, config.window, data)
    mean, square = torch.zeros_like(flat), torch.zeros_like(flat)
    keep, kept, losses = set(moments(config.steps).tolist()), [flat.detach().clone()], []
    for step in range(1, config.steps + 1):
        if cancelled():
            raise Cancelled
        if config.fresh and step > 1:
            inputs, targets = task.sample(config.sequences, config.window, data)
        loss = ((predictions(inputs) - targets) ** 2).mean((1, 2))  # (S,)
        (gradient,) = torch.autograd.grad(loss.sum(), flat)
        with torch.no_grad():  # Adam with torch's defaults
            mean.lerp_(gradient, 0.1)
            square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
            root = (square.sqrt() / math.sqrt(1 - 0.999**step)).add_(1e-8)
            flat.addcdiv_(mean, root, value=-config.learning_rate / (1 - 0.9**step))
        losses.append(loss.detach())
        if step in keep:
            kept.append(flat.detach().clone())
        if listen:
            listen(step, loss[0].item())

    inputs, targets = task.sample(config.test_sequences, config.window, Generator().manual_seed(config.test_seed))
    with torch.no_grad():
        answers = []
        for part in inputs.split(SCORE_SEQUENCES):
            if cancelled():
                raise Cancelled
            answers.append(predictions(part))
    train_loss, weights = torch.stack(losses, 1).numpy(), torch.stack(kept, 1).numpy()
    return [
        (Trained(train_loss[run].copy(), moments(config.steps), weights[run].copy()), scored(answer, targets))
        for run, answer in enumerate(torch.cat(answers, 1))
    ]


def _rnn(w_in: Tensor, w: Tensor, b_in: Tensor, b: Tensor, w_out: Tensor, b_out: Tensor, inputs: Tensor) -> Tensor:
    """h_t = tanh(W_in x_t + b_in + W h_(t−1) + b), prediction = W_out h_n + b_out; every weight has S in front."""
    entering = torch.einsum("bnf,shf->nsbh", inputs, w_in) + (b_in + b)[:, None, :]  # (n, S, B, H)
    hidden, across = torch.zeros_like(entering[0]), w.transpose(1, 2)
    for step in entering.unbind():
        hidden = torch.baddbmm(step, hidden, across).tanh()  # (S, B, H)
    return torch.baddbmm(b_out[:, None, :], hidden, w_out.transpose(1, 2))


def _attention(positions: Tensor, key: Tensor, query: Tensor, inputs: Tensor) -> Tensor:
    """w = softmax(Q K Pᵀ / √d), prediction = Σ_i w_i x_i."""
    weights = (query @ key @ positions.transpose(1, 2) / math.sqrt(query.shape[2])).softmax(-1)  # (S, T, n)
    return torch.einsum("stn,bn->sbt", weights, inputs[:, :, 0])
