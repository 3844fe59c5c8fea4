"""The models are what they are said to be: torch's own cells, attention as a weighted sum, and two baselines."""

import math

import numpy as np
import pytest
import torch
from torch import Generator, nn

from explorer import config
from explorer.config import KEYS, POSITIONS, RunConfig, Shape
from explorer.models import MODELS, Attention, Recurrent, build, model_named, start_positions
from explorer.tasks import TASKS

FIRST = Shape(features=1, targets=1, expected=0.5)
SHAPES = {"one target": FIRST, "a target for each step": Shape(1, 12, 0.5), "two features": Shape(2, 1, 1.0)}
RECURRENT = [name for name, kind in MODELS.items() if issubclass(kind, Recurrent)]
ATTENTION = [name for name, kind in MODELS.items() if issubclass(kind, Attention)]
STARTS = [(name, start) for name, kind in MODELS.items() for start in kind.starts]
VARIANTS = [(positions, keys) for positions in POSITIONS for keys in KEYS]


def sequences(count: int, window: int, features: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, window, features, generator=Generator().manual_seed(seed))


def torch_modules(name: str, hidden: int, shape: Shape, seed: int) -> tuple[nn.RNNBase, nn.Linear]:
    """What the lesson writes: torch's cell and read-out, started from torch's global seed."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        cell = MODELS[name].cell_type(shape.features, hidden, batch_first=True)
        return cell, nn.Linear(hidden, shape.targets)


# Every model


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("name", "start"), STARTS)
def test_a_model_answers_every_target_of_every_sequence(name, start, shape):
    model = build(RunConfig(model=name, start=start, window=12), shape)
    predictions = model(sequences(5, 12, shape.features))
    assert predictions.shape == (5, shape.targets)
    assert predictions.dtype == torch.float32
    assert predictions.isfinite().all()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", MODELS)
def test_a_model_takes_the_sequences_of_every_task(name, task):
    inputs, targets = TASKS[task].sample(3, 9, Generator().manual_seed(0))
    assert build(RunConfig(model=name, task=task, window=9), TASKS[task].shape(9))(inputs).shape == targets.shape


@pytest.mark.parametrize(("name", "start"), STARTS)
def test_building_draws_nothing_from_the_global_generator(name, start):
    before = torch.random.get_rng_state()
    build(RunConfig(model=name, start=start), FIRST)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(("name", "start"), STARTS)
def test_starting_weights_follow_from_the_seed_alone(name, start):
    def weights(seed: int) -> list[torch.Tensor]:
        return [p.detach() for p in build(RunConfig(model=name, start=start, init_seed=seed), FIRST).parameters()]

    with torch.random.fork_rng():
        torch.manual_seed(5)
        once = weights(1)
    assert all(torch.equal(a, b) for a, b in zip(once, weights(1), strict=True))
    assert not once or not all(torch.equal(a, b) for a, b in zip(once, weights(2), strict=True))


@pytest.mark.parametrize("name", MODELS)
def test_a_sequence_is_answered_the_same_alone_and_in_company(name):
    model, inputs = build(RunConfig(model=name, window=9), FIRST), sequences(6, 9)
    torch.testing.assert_close(model(inputs[2:3]), model(inputs)[2:3], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_says_what_menus_need(name):
    kind = MODELS[name]
    assert kind.label
    assert kind.inside in ("hidden", "attention", "")
    assert set(kind.reads) <= set(RunConfig().to_dict())
    assert kind.starts[0] == RunConfig().start


def test_labels_tell_models_apart():
    assert len({kind.label for kind in MODELS.values()}) == len(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_the_parameter_count_is_the_number_of_trained_numbers(name):
    model = build(RunConfig(model=name), FIRST)
    assert model.parameter_count == sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("name", "hidden", "count"),
    [
        ("rnn", 8, (1 + 8 + 2) * 8 + 9),
        ("gru", 8, 3 * (1 + 8 + 2) * 8 + 9),
        ("lstm", 8, 4 * (1 + 8 + 2) * 8 + 9),
        ("rnn", 1, 4 + 2),
        ("attention", 8, 32 * 16 + 16 * 16 + 16),  # positions, key matrix, one query; hidden units play no part
        ("mean", 8, 0),
        ("constant", 8, 0),
    ],
)
def test_the_parameter_count_follows_from_the_equations(name, hidden, count):
    assert build(RunConfig(model=name, hidden=hidden), FIRST).parameter_count == count


@pytest.mark.parametrize("name", MODELS)
def test_an_unknown_start_is_refused_with_what_the_model_takes(name):
    kind = MODELS[name]
    for start in set(config.STARTS) - set(kind.starts):
        with pytest.raises(ValueError) as refused:
            build(RunConfig(model=name, start=start), FIRST)
        assert str(refused.value) == f"start is {start!r}; {kind.label} takes {', '.join(kind.starts)}"


def test_the_starts_are_the_published_ones():
    assert MODELS["rnn"].starts == ("default", "orthogonal", "identity")
    assert MODELS["gru"].starts == MODELS["lstm"].starts == ("default", "orthogonal", "chrono")
    assert MODELS["attention"].starts == ("default",)


def test_a_model_is_found_by_its_name_and_an_unknown_one_names_those_that_exist():
    for name, kind in MODELS.items():
        assert model_named(name) is kind
    with pytest.raises(ValueError, match="model is 'transformer'; it must be one of rnn, gru, lstm, attention"):
        model_named("transformer")


# Recurrent models


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("seed", [0, 1, 2147483647])
@pytest.mark.parametrize("hidden", [1, 8, 64])
@pytest.mark.parametrize("name", RECURRENT)
def test_default_weights_are_torchs_own_bit_for_bit(name, hidden, seed, shape):
    cell, readout = torch_modules(name, hidden, shape, seed)
    model = build(RunConfig(model=name, hidden=hidden, init_seed=seed), shape)
    ours = dict(model.cell.named_parameters()) | dict(model.readout.named_parameters())
    theirs = dict(cell.named_parameters()) | dict(readout.named_parameters())
    assert list(ours) == list(theirs)
    for key, weights in theirs.items():
        assert torch.equal(ours[key], weights), key


@pytest.mark.parametrize("window", [1, 5, 32, 200])
@pytest.mark.parametrize("name", RECURRENT)
def test_hidden_states_are_those_of_torchs_module_with_the_same_weights(name, window):
    cell, readout = torch_modules(name, 8, FIRST, 7)
    model, inputs = build(RunConfig(model=name, init_seed=7), FIRST), sequences(4, window)
    states, last = cell(inputs)
    last = last[0] if isinstance(last, tuple) else last  # an LSTM gives its cell state too
    torch.testing.assert_close(model.hidden_states(inputs), states, atol=1e-6, rtol=0)
    torch.testing.assert_close(model.hidden_states(inputs)[:, -1], last[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(model(inputs), readout(states[:, -1]), atol=1e-6, rtol=0)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def written_out(name: str, start: str, weights: dict[str, np.ndarray], inputs: np.ndarray) -> np.ndarray:
    """Hidden states (n, H) of one sequence (n, F), from the published equations, step by step."""
    w_in, w, b_in, b = (weights[key] for key in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"))
    state, cell, states = np.zeros(w.shape[1]), np.zeros(w.shape[1]), []
    for x in inputs:
        from_input, from_state = w_in @ x + b_in, w @ state + b
        if name == "rnn":
            total = from_input + from_state
            state = np.maximum(total, 0) if start == "identity" else np.tanh(total)
        elif name == "gru":
            (ri, zi, ni), (rh, zh, nh) = np.split(from_input, 3), np.split(from_state, 3)
            update = sigmoid(zi + zh)
            state = (1 - update) * np.tanh(ni + sigmoid(ri + rh) * nh) + update * state
        else:
            enter, forget, new, leave = np.split(from_input + from_state, 4)
            cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
            state = sigmoid(leave) * np.tanh(cell)
        states.append(state)
    return np.array(states)


@pytest.mark.parametrize(("name", "start"), [pair for pair in STARTS if pair[0] in ("rnn", "gru", "lstm")])
def test_hidden_states_follow_the_published_equations(name, start):
    model, inputs = build(RunConfig(model=name, start=start), FIRST), sequences(1, 32)
    weights = {key: p.detach().double().numpy() for key, p in model.cell.named_parameters()}
    expected = written_out(name, start, weights, inputs[0].double().numpy())
    np.testing.assert_allclose(model.hidden_states(inputs)[0].detach().numpy(), expected, atol=1e-5)


def test_the_lessons_rnn_reads_32_steps_into_one_state_of_8_numbers():
    model, inputs = build(RunConfig(model="rnn", hidden=8, init_seed=0), FIRST), sequences(1, 32)
    assert model.hidden_states(inputs).shape == (1, 32, 8)
    assert model.cell(inputs)[1].shape == (1, 1, 8)


@pytest.mark.parametrize("hidden", [1, 8, 33])
@pytest.mark.parametrize("name", [name for name in RECURRENT if "orthogonal" in MODELS[name].starts])
def test_orthogonal_start_keeps_lengths_in_every_recurrent_block(name, hidden):
    weights = build(RunConfig(model=name, start="orthogonal", hidden=hidden), FIRST).cell.weight_hh_l0.detach()
    blocks = weights.reshape(-1, hidden, hidden)
    for block in blocks:
        torch.testing.assert_close(block @ block.T, torch.eye(hidden), atol=1e-5, rtol=0)
    if hidden > 1:
        assert all(not torch.equal(blocks[0], block) for block in blocks[1:])


@pytest.mark.parametrize("name", [name for name in RECURRENT if "orthogonal" in MODELS[name].starts])
def test_orthogonal_start_leaves_all_other_weights_as_they_were(name):
    default, orthogonal = (build(RunConfig(model=name, start=s), FIRST) for s in ("default", "orthogonal"))
    changed = [
        key
        for (key, a), (_, b) in zip(default.named_parameters(), orthogonal.named_parameters(), strict=True)
        if not torch.equal(a, b)
    ]
    assert changed == ["cell.weight_hh_l0"]


def test_identity_start_copies_the_state_and_rectifies():
    model = build(RunConfig(model="rnn", start="identity", hidden=16), FIRST)
    assert torch.equal(model.cell.weight_hh_l0, torch.eye(16))
    assert not model.cell.bias_ih_l0.any() and not model.cell.bias_hh_l0.any()
    assert 0.0005 < model.cell.weight_ih_l0.std() < 0.0015
    inputs = sequences(3, 50)
    # Each unit adds up its rectified inputs and forgets nothing.
    totals = inputs.cumsum(1) * model.cell.weight_ih_l0[:, 0].clamp_min(0)
    torch.testing.assert_close(model.hidden_states(inputs), totals, atol=1e-5, rtol=0)


@pytest.mark.parametrize("start", MODELS["rnn"].starts)
def test_only_the_identity_start_rectifies(start):
    states = build(RunConfig(model="rnn", start=start), FIRST).hidden_states(sequences(5, 20) - 0.5)
    assert (states.min() >= 0) == (start == "identity")


@pytest.mark.parametrize("window", [2, 10, 1000])
def test_chrono_start_gives_the_lstm_forget_gates_that_last_up_to_the_window(window):
    cell = build(RunConfig(model="lstm", start="chrono", window=window, hidden=64), FIRST).cell
    enter, forget, _, _ = cell.bias_ih_l0.detach().chunk(4)
    assert torch.equal(enter, -forget)
    assert not cell.bias_hh_l0[:128].any()
    assert_chrono(forget, window)


@pytest.mark.parametrize("window", [2, 10, 1000])
def test_chrono_start_gives_the_gru_update_gates_that_last_up_to_the_window(window):
    cell = build(RunConfig(model="gru", start="chrono", window=window, hidden=64), FIRST).cell
    assert not cell.bias_hh_l0[64:128].any()
    assert_chrono(cell.bias_ih_l0.detach()[64:128], window)


def assert_chrono(bias: torch.Tensor, window: int) -> None:
    """log U(1, n − 1): within its ends, and e^bias spread evenly, by Kolmogorov and Smirnov's distance at 0.1 %."""
    durations = bias.double().exp().sort().values
    assert durations[0] > 1 - 1e-6 and durations[-1] < window - 1 + 1e-3
    if window > 2:
        share = (durations - 1) / (window - 2)
        even = torch.arange(1, len(share) + 1) / len(share)
        assert (share - even).abs().max() < 1.95 / math.sqrt(len(share))


@pytest.mark.parametrize(("name", "blocks"), [("gru", (0, 2)), ("lstm", (2, 3))])
def test_chrono_start_leaves_all_other_weights_as_they_were(name, blocks):
    default, chrono = (build(RunConfig(model=name, start=s), FIRST) for s in ("default", "chrono"))
    for (key, before), (_, after) in zip(default.named_parameters(), chrono.named_parameters(), strict=True):
        if key not in ("cell.bias_ih_l0", "cell.bias_hh_l0"):
            assert torch.equal(before, after), key
        else:
            for block in blocks:
                assert torch.equal(before[8 * block : 8 * block + 8], after[8 * block : 8 * block + 8]), key


def test_a_chrono_gru_keeps_its_state_longer_than_a_default_one():
    def moved_by_first_value(start: str) -> float:
        low, high = sequences(1, 32), sequences(1, 32)
        low[0, 0], high[0, 0] = 0, 1
        model = build(RunConfig(model="gru", start=start), FIRST)
        return (model.hidden_states(high) - model.hidden_states(low))[0, -1].norm().item()

    assert moved_by_first_value("chrono") > 100 * moved_by_first_value("default")


# Attention


def attention(shape: Shape = FIRST, **values) -> Attention:
    return build(RunConfig(model="attention", **{"window": 12} | values), shape)


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("positions", "keys"), VARIANTS)
def test_attention_weights_are_positive_shares_of_every_step(name, positions, keys, shape):
    model = build(RunConfig(model=name, window=12, positions=positions, keys=keys), shape)
    weights = model.weights(sequences(5, 12, shape.features))
    assert weights.shape == (5, shape.targets, 12)
    assert weights.min() > 0
    torch.testing.assert_close(weights.sum(-1), torch.ones(5, shape.targets), atol=1e-6, rtol=0)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("positions", "keys"), VARIANTS)
def test_attention_answers_with_the_weighted_sum_of_the_values(positions, keys, shape):
    model, inputs = attention(shape, positions=positions, keys=keys), sequences(5, 12, shape.features)
    expected = (model.weights(inputs) * inputs[:, None, :, 0]).sum(-1)
    torch.testing.assert_close(model(inputs), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("positions", "keys"), VARIANTS)
def test_attention_weights_are_the_scaled_dot_products_of_queries_and_keys(positions, keys):
    shape = Shape(2, 12, 0.5)
    model, inputs = attention(shape, positions=positions, keys=keys, width=6), sequences(3, 12, 2)
    position, matrix, query = (t.detach().double().numpy() for t in (model.positions, model.key, model.query))
    content = model.content.detach().double().numpy() if keys == "position+content" else np.zeros((2, 6))
    expected = np.empty((3, 12, 12))
    for b, sequence in enumerate(inputs.double().numpy()):
        for target in range(12):
            key = [matrix @ position[i] + content.T @ sequence[i] for i in range(12)]
            scores = np.array([query[target] @ k / math.sqrt(6) for k in key])
            expected[b, target] = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(model.weights(inputs).detach().numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("shape", [FIRST, Shape(1, 12, 0.5)], ids=["one target", "a target for each step"])
@pytest.mark.parametrize("positions", POSITIONS)
def test_with_keys_from_positions_the_weights_are_the_whole_function(positions, shape):
    model, inputs = attention(shape, positions=positions), sequences(1, 12)
    jacobian = torch.autograd.functional.jacobian(model, inputs)[0, :, 0, :, 0]  # (T, n)
    torch.testing.assert_close(jacobian, model.weights(inputs)[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_with_keys_from_positions_every_sequence_has_the_same_weights(positions):
    weights = attention(positions=positions).weights(sequences(5, 12))
    assert torch.equal(weights, weights[:1].expand(5, -1, -1))
    assert (weights[0].max() - weights[0].min()).item() > 1e-3  # the steps can be told apart


@pytest.mark.parametrize("positions", POSITIONS)
def test_with_content_in_the_keys_the_weights_depend_on_the_sequence(positions):
    weights = attention(positions=positions, keys="position+content").weights(sequences(2, 12))
    assert (weights[0] - weights[1]).abs().max() > 1e-4


def test_with_content_in_the_keys_the_weights_are_no_longer_the_whole_function():
    model, inputs = attention(keys="position+content"), sequences(1, 12)
    jacobian = torch.autograd.functional.jacobian(model, inputs)[0, :, 0, :, 0]
    assert (jacobian - model.weights(inputs)[0]).abs().max() > 1e-4


@pytest.mark.parametrize("window", [2, 12, 100])
def test_without_positions_attention_can_only_average(window):
    model, inputs = attention(positions="none", window=window), sequences(5, window)
    torch.testing.assert_close(model.weights(inputs), torch.full((5, 1, window), 1 / window), atol=1e-6, rtol=0)
    torch.testing.assert_close(model(inputs), inputs.mean(1), atol=1e-6, rtol=0)


def test_without_positions_order_is_invisible_even_to_content():
    model, inputs = attention(positions="none", keys="position+content"), sequences(5, 12)
    order = torch.randperm(12, generator=Generator().manual_seed(1))
    torch.testing.assert_close(model(inputs[:, order]), model(inputs), atol=1e-6, rtol=0)
    torch.testing.assert_close(model.weights(inputs[:, order]), model.weights(inputs)[:, :, order], atol=1e-6, rtol=0)


def test_shuffling_values_together_with_their_positions_changes_nothing():
    model, inputs = attention(keys="position+content"), sequences(5, 12)
    before, order = model(inputs).detach(), torch.randperm(12, generator=Generator().manual_seed(1))
    assert (model(inputs[:, order]) - before).abs().max() > 1e-4
    model.positions.data = model.positions.data[order]
    torch.testing.assert_close(model(inputs[:, order]), before, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("positions", "keys"), VARIANTS)
def test_a_shorter_sequence_is_read_with_the_first_positions(positions, keys):
    shape = Shape(1, 12, 0.5)
    model, inputs = attention(shape, positions=positions, keys=keys), sequences(5, 4)
    short = attention(Shape(1, 4, 0.5), positions=positions, keys=keys, window=4)
    short.key, short.query, short.content = model.key, nn.Parameter(model.query.data[:4]), model.content
    short.positions.data = model.positions.data[:4]
    assert model.weights(inputs).shape == (5, 4, 4)
    torch.testing.assert_close(model(inputs), short(inputs), atol=1e-6, rtol=0)


@pytest.mark.parametrize("width", [1, 2, 7, 16])
def test_sinusoidal_positions_are_those_of_the_paper(width):
    table = start_positions("sinusoidal", 100, width, Generator())
    assert table.shape == (100, width)
    for position in (0, 1, 2, 31, 99):
        for dimension in range(width):
            angle = position / 10000 ** (2 * (dimension // 2) / width)
            expected = math.cos(angle) if dimension % 2 else math.sin(angle)
            assert table[position, dimension].item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("positions", POSITIONS)
def test_only_learned_positions_are_trained(positions):
    model = attention(positions=positions)
    assert ("positions" in dict(model.named_parameters())) == (positions == "learned")


def test_learned_positions_start_normal_and_the_rest_uniform_within_one_over_root_width():
    model = attention(Shape(1, 300, 0.5), window=300, width=64, keys="position+content")
    positions = model.positions.detach().double()
    assert positions.mean().abs() < 3 / math.sqrt(positions.numel())
    assert positions.std().item() == pytest.approx(1, abs=3 / math.sqrt(2 * positions.numel()))
    for weights in (model.key, model.query):
        assert 0.99 / 8 < weights.abs().max() <= 1 / 8
        assert weights.std().item() == pytest.approx(1 / 8 / math.sqrt(3), rel=0.03)
    assert model.content.abs().max() <= 1 / 8


# Baselines


@pytest.mark.parametrize("targets", [1, 12])
def test_the_mean_answers_every_target_with_the_mean_of_the_sequence(targets):
    inputs = sequences(5, 12)
    predictions = build(RunConfig(model="mean", window=12), Shape(1, targets, 0.5))(inputs)
    expected = inputs.numpy()[:, :, 0].astype(np.float64).mean(1)
    np.testing.assert_allclose(predictions.numpy(), np.repeat(expected[:, None], targets, 1), atol=1e-6)


def test_the_mean_guess_of_the_lesson():
    guess = build(RunConfig(model="mean", window=4), FIRST)(torch.tensor([[[0.8], [0.1], [0.4], [0.2]]])).item()
    assert f"{guess:.4f}" == "0.3750"
    assert f"{(guess - 0.8) ** 2:.4f}" == "0.1806"


@pytest.mark.parametrize("expected", [0.5, 1.0])
def test_the_constant_answers_what_one_says_who_knows_nothing(expected):
    predictions = build(RunConfig(model="constant"), Shape(1, 3, expected))(sequences(5, 32))
    assert torch.equal(predictions, torch.full((5, 3), expected))
