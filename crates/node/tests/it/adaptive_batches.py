"""Where batches go that follow the noise of the gradient, and whom their samples are dealt to."""

import json
import os
import random
import time

from heterosis import AdaptiveBatches


class Clock:
    """Seconds pass where they are said to."""
    now = 0.0


time.monotonic = lambda: Clock.now
draw = random.Random(3)


def train(batches, *, noise, per_sample, rest, until=10**9):
    """Gradients of 64 numbers, of mean 1, whose samples vary so much that a least batch has this
    noise. Gives the samples of each step."""
    deviation = (noise * batches.least) ** 0.5
    gradient = lambda count: [1 + draw.gauss(0, deviation / count**0.5) for _ in range(64)]
    square = lambda vector: sum(x * x for x in vector)
    for step in batches:
        parts, sums = [], [0.0] * 64
        for micro in step.micro():
            assert 0 < len(micro) <= batches.at_once
            Clock.now += per_sample * len(micro)
            own = gradient(len(micro))
            parts.append((own, len(micro)))
            sums = [a + b * len(micro) / len(step.own) for a, b in zip(sums, own)]
        if step.is_measured and len(parts) > 1:
            batches.observe(square(parts[0][0]), square(sums))
        Clock.now += rest
        told = batches.progress()
        Clock.now += 7.0  # a save
        yield step, told
        if told["step"] >= until:
            return


# With noise it grows to where it counts most a second; without it stays the least.
for noise, rest, best in [(4.0, 0.32, 64), (16.0, 0.08, 64), (0.0, 0.32, 16), (1e5, 9.0, 256)]:
    batches = AdaptiveBatches(10_000, micro=8, batch=(16, 256), epochs=8)
    sizes, told = [], {}
    for step, told in train(batches, noise=noise, per_sample=0.005, rest=rest):
        sizes.append(len(step.all))
    assert told["total"] == 5_000 <= told["step"], told
    middle = sorted(sizes[len(sizes) // 4 :])[len(sizes) * 3 // 8]
    assert best / 1.4 <= middle <= best * 1.4, (noise, best, middle)
    measured = told["measured"]
    assert abs(measured["exchange_s"] / rest - 1) < 0.05, measured
    assert abs(measured["step_s"] - rest - 0.005 * measured["batch"]) < 0.01 * rest, measured
    assert measured["gradient_noise"] <= 1.5 * noise + 0.2, measured
    assert measured["gradient_noise"] >= min(0.5 * noise, 20) - 0.2, measured
    assert max(b / a for a, b in zip(sizes, sizes[1:])) <= 2.6 or min(sizes) < 16

# A step of one's own size counts one, a larger one more, but less than its samples; ends count less.
batches = AdaptiveBatches(1_000, micro=8, batch=(16, 256), epochs=1)
assert batches.gain(16) == 1.0
for _ in train(batches, noise=4.0, per_sample=0.005, rest=0.3, until=20):
    pass
assert 1.0 < batches.gain(64) < 4.0 and batches.gain(8) < 1.0
assert abs(batches.gain(64) - (batches.noise + 1) / (batches.noise / 4 + 1)) < 1e-9

# Each sample is seen once an epoch, whatever the batch, and by one rank, across checkpoints and
# numbers of ranks; ranks agree.
seen, state = [], None
for round, world in enumerate([4, 2, 1, 3, 4, 1]):
    ranks = []
    for rank in range(world):
        one = AdaptiveBatches(
            777, micro=4, batch=(16, 128), epochs=3, seed=5, rank=rank, world=world, mean=list
        )
        if state is not None:
            one.restore(json.loads(json.dumps(state)))
        ranks.append(one)
    for number, steps in enumerate(zip(*ranks)):
        own = [list(step.micro()) for step in steps]
        assert len({tuple(step.all) for step in steps}) == 1
        dealt = sorted(sum((part for parts in own for part in parts), []))
        assert dealt == sorted(steps[0].all)
        weights = [
            step.weight(part) for step, parts in zip(steps, own) for part in parts
        ]
        assert abs(sum(weights) / world - 1) < 1e-9
        for one, step in zip(ranks, steps):
            if step.is_measured:
                # Noise of two.
                few, many = len(step.all) / world if world > 1 else step.first, len(step.all)
                one.observe(1 + 2 * 16 / few, 1 + 2 * 16 / many)
        seen += steps[0].all
        Clock.now += 0.1
        if number == 9 and round < 5:
            break
    states = [one.state() for one in ranks]
    assert all(one[key] == states[0][key] for one in states for key in ("position", "batch"))
    state = states[0]
for epoch in range(len(seen) // 777):
    assert sorted(seen[epoch * 777 : (epoch + 1) * 777]) == list(range(777)), epoch
assert len(seen) >= 3 * 777

os.environ.update(HET_BATCH_MIN="32", HET_BATCH_MAX="64")
told = AdaptiveBatches(100, micro=8, batch=(1, 2))
assert (told.least, told.most) == (32, 64)
del os.environ["HET_BATCH_MIN"]
for wrong in [dict(), dict(batch=(8, 4)), dict(batch=(0, 4))]:
    try:
        AdaptiveBatches(100, micro=8, **wrong)
        raise SystemExit(f"{wrong} is no range")
    except ValueError:
        pass
