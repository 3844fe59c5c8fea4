"""The models: readable torch modules under one contract, and the two baselines.

Shapes: batch B, window n, hidden units H, width d, targets T (1 or n), features F (1).
Starting weights come from the generator passed in, never from torch's global one, in the order in which `torch.nn.RNN`
and `torch.nn.Linear` draw theirs: the same seed gives the numbers that the plain torch modules give.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from functools import cache

import torch
from torch import Generator, Tensor, nn

from explorer.config import RunConfig, Shape


class Model(nn.Module):
    """One contract for all models.

    Class attributes: `label` as menus show it; `reads`, the config's fields that this model depends on besides task,
    window and the test's (settings it does not read are not shown for it, and do not make its results differ);
    `starts`, its choices of starting weights; `inside`, what can be looked at: "hidden", "attention" or nothing.
    """

    label: str
    reads: tuple[str, ...] = ()
    starts: tuple[str, ...] = ("default",)
    inside: str = ""

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """Predictions (B, T) for inputs (B, n, F)."""

    @property
    def parameter_count(self) -> int:
        """How many numbers training may change."""
        return sum(parameter.numel() for parameter in self.parameters())


TRAINING = (
    "steps", "learning_rate", "clip", "sequences", "fresh", "init_seed", "data_seed", "curriculum",
)  # fmt: skip


@cache
def undrawn(kind: type[nn.Module]) -> type[nn.Module]:
    """The same module with its weights left undrawn, for its constructor would draw them from the global generator."""
    return type(kind.__name__, (kind,), {"reset_parameters": lambda self: None})


class Recurrent(Model):
    """One layer of a torch cell, and a linear read-out of the last hidden state."""

    reads = ("hidden", "start", *TRAINING)
    inside = "hidden"
    cell_type: type[nn.RNNBase]
    gates: int  # blocks of H rows in the recurrent matrix

    def __init__(self, config: RunConfig, shape: Shape, generator: Generator):
        super().__init__()
        options = {"nonlinearity": "relu"} if config.start == "identity" else {}
        self.cell = undrawn(self.cell_type)(shape.features, config.hidden, batch_first=True, **options)
        self.readout = undrawn(nn.Linear)(config.hidden, shape.targets)
        self._draw(config, generator)

    def forward(self, inputs):
        return self.readout(self.hidden_states(inputs)[:, -1, :])  # (B, T)

    def hidden_states(self, inputs: Tensor) -> Tensor:
        """The hidden state after every step, (B, n, H)."""
        return self.cell(inputs)[0]

    @torch.no_grad()
    def _draw(self, config: RunConfig, generator: Generator) -> None:
        bound = 1 / math.sqrt(config.hidden)
        for parameter in self.cell.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
        nn.init.kaiming_uniform_(self.readout.weight, a=math.sqrt(5), generator=generator)
        self.readout.bias.uniform_(-bound, bound, generator=generator)
        if config.start == "orthogonal":
            for block in self.cell.weight_hh_l0.chunk(self.gates):
                block.copy_(nn.init.orthogonal_(torch.empty_like(block), generator=generator))
        elif config.start == "identity":
            # IRNN: rectified units that start by copying themselves (Le, Jaitly and Hinton 2015).
            nn.init.eye_(self.cell.weight_hh_l0)
            self.cell.weight_ih_l0.normal_(0, 0.001, generator=generator)
            self.cell.bias_ih_l0.zero_()
            self.cell.bias_hh_l0.zero_()
        elif config.start == "chrono":
            # Gates that start open for 1 to n − 1 steps (Tallec and Ollivier 2018).
            memory = torch.empty(config.hidden).uniform_(1, max(1, config.window - 1), generator=generator).log()
            self._set_chrono(memory)

    def _set_chrono(self, memory: Tensor) -> None:
        raise ValueError(f"start is 'chrono'; {self.label} has no gates")


class RNN(Recurrent):
    """h_t = tanh(W_in x_t + b_in + W h_(t−1) + b_h); rectified instead of tanh where start is "identity"."""

    label = "RNN"
    starts = ("default", "orthogonal", "identity")
    cell_type = nn.RNN
    gates = 1


class GRU(Recurrent):
    """torch's GRU: h_t = (1 − z_t) · new_t + z_t · h_(t−1). Row blocks: reset, update (z), new."""

    label = "GRU"
    starts = ("default", "orthogonal", "chrono")
    cell_type = nn.GRU
    gates = 3

    def _set_chrono(self, memory):
        size = len(memory)
        self.cell.bias_ih_l0[size : 2 * size] = memory  # z near 1 keeps the old state
        self.cell.bias_hh_l0[size : 2 * size] = 0


class LSTM(Recurrent):
    """torch's LSTM. Row blocks: input, forget, cell, output. Only h is read out."""

    label = "LSTM"
    starts = ("default", "orthogonal", "chrono")
    cell_type = nn.LSTM
    gates = 4

    def _set_chrono(self, memory):
        size = len(memory)
        self.cell.bias_ih_l0[:size] = -memory
        self.cell.bias_ih_l0[size : 2 * size] = memory
        self.cell.bias_hh_l0[: 2 * size] = 0


class Attention(Model):
    """One head that looks back directly: w = softmax(q · k_i / √d), prediction = Σ w_i x_i.

    A learned query for each target; keys k_i = K p_i from the positions p_i, plus c x_i where keys are
    "position+content"; the values are the inputs themselves, with no read-out on top. With keys from positions alone
    the weights are the whole function. The scaled dot product is that of Vaswani et al. 2017.
    """

    label = "Attention"
    reads = ("width", "positions", "keys", *TRAINING)
    inside = "attention"

    def __init__(self, config: RunConfig, shape: Shape, generator: Generator):
        super().__init__()
        width, bound = config.width, 1 / math.sqrt(config.width)

        def uniform(*size: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(size).uniform_(-bound, bound, generator=generator))

        positions = start_positions(config.positions, config.window, width, generator)  # (n, d)
        if config.positions == "learned":
            self.positions = nn.Parameter(positions)
        else:
            self.register_buffer("positions", positions)
        self.key = uniform(width, width)
        self.query = uniform(shape.targets, width)
        self.content = uniform(shape.features, width) if config.keys == "position+content" else None

    def forward(self, inputs):
        weights, values = self._weights(inputs), inputs[:, :, 0]
        if weights.dim() == 2:  # the same for every sequence
            return values @ weights.T  # (B, T)
        return torch.einsum("btn,bn->bt", weights, values)  # (B, T)

    def weights(self, inputs: Tensor) -> Tensor:
        """How much of each step every target takes, (B, T, n); each row is positive and sums to 1."""
        weights = self._weights(inputs)
        return weights.expand(len(inputs), *weights.shape[-2:])

    def _weights(self, inputs: Tensor) -> Tensor:
        """(T, n) where the weights do not depend on the sequence, else (B, T, n)."""
        window = inputs.shape[1]
        query = self.query[:window]  # (T, d)
        scores = query @ self.key @ self.positions[:window].T  # (T, n)
        if self.content is not None:
            scores = scores + torch.einsum("td,fd,bnf->btn", query, self.content, inputs)  # (B, T, n)
        return (scores / math.sqrt(query.shape[1])).softmax(-1)


def start_positions(kind: str, window: int, width: int, generator: Generator) -> Tensor:
    """Position vectors (n, d): drawn from N(0, 1), sines and cosines of Vaswani et al. 2017, or all zero."""
    if kind == "learned":
        return torch.randn(window, width, generator=generator)
    table = torch.zeros(window, width)
    if kind == "sinusoidal":
        step = torch.arange(window, dtype=torch.float32)[:, None]  # (n, 1)
        rate = 10000 ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)  # (⌈d/2⌉,)
        table[:, 0::2] = torch.sin(step * rate)
        table[:, 1::2] = torch.cos(step * rate)[:, : width // 2]
    return table


class Mean(Model):
    """Answers every target with the mean of the sequence. Nothing to train."""

    label = "Mean"

    def __init__(self, config: RunConfig, shape: Shape, generator: Generator):
        super().__init__()
        self.targets = shape.targets

    def forward(self, inputs):
        return inputs[:, :, 0].mean(1, keepdim=True).expand(-1, self.targets)  # (B, T)


class Constant(Model):
    """Answers every target with the mean of all targets, whatever it reads. Nothing to train."""

    label = "Constant"

    def __init__(self, config: RunConfig, shape: Shape, generator: Generator):
        super().__init__()
        self.targets, self.expected = shape.targets, shape.expected

    def forward(self, inputs):
        return inputs.new_full((len(inputs), self.targets), self.expected)  # (B, T)


MODELS: dict[str, type[Model]] = {
    "rnn": RNN,
    "gru": GRU,
    "lstm": LSTM,
    "attention": Attention,
    "mean": Mean,
    "constant": Constant,
}


def model_named(name: str) -> type[Model]:
    """The class of that name. Raises ValueError naming those that exist."""
    if name not in MODELS:
        raise ValueError(f"model is {name!r}; it must be one of {', '.join(MODELS)}")
    return MODELS[name]


def build(config: RunConfig, shape: Shape) -> Model:
    """The model of a config with its starting weights, drawn from `config.init_seed`.

    Raises:
        ValueError: the model does not exist, or does not have these starting weights.
    """
    kind = model_named(config.model)
    if config.start not in kind.starts:
        raise ValueError(f"start is {config.start!r}; {kind.label} takes {', '.join(kind.starts)}")
    return kind(config, shape, Generator().manual_seed(config.init_seed))
