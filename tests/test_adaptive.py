"""Adaptive fusion without a cluster: what is measured, and plans from a checkpoint."""

import pytest

from tfscale.distribute import adaptive, buckets, link_cost

SPECS = [
    buckets.TensorSpec("a/kernel", (1000,), "float32", 4),
    buckets.TensorSpec("b/kernel", (1000,), "float32", 4, "int8"),
    buckets.TensorSpec("c/ids", (10,), "int64", 8),
    buckets.TensorSpec("d/unknown", None, "float32", 4),
    buckets.TensorSpec("e/kernel", (1000,), "float32", 4),
]
CHOSEN = ((2,), (1,), (4, 0))


def test_a_saved_plan_is_taken_over():
    fusion = adaptive.AdaptiveFusion()
    saved = buckets.plan_of_buckets(SPECS, CHOSEN).fingerprint()
    fusion.use(saved + [["f/embeddings", None, "sparse", buckets.ALONE]])
    plan, timeline = fusion.plan(SPECS)
    assert timeline is None and not fusion.wants_measurement and fusion.present is None
    assert plan.fingerprint() == saved


def test_a_new_model_is_measured():
    fusion = adaptive.AdaptiveFusion()
    plan, timeline = fusion.plan(SPECS)
    assert timeline is not None and fusion.wants_measurement
    assert plan == buckets.plan_buckets(SPECS, 4 << 20)
    assert not fusion.after_step()  # No step has run.
    fusion.forget()
    assert not fusion.wants_measurement


def test_buckets_that_do_not_fit_the_tensors():
    with pytest.raises(ValueError, match="each of 5 tensors once"):
        buckets.plan_of_buckets(SPECS, ((0, 1), (1, 2)))


def test_ready_times_are_medians_from_the_first_gradient_of_each_step():
    def reading(origin, *times):
        named = {f"tensor {i}": origin + time for i, time in enumerate(times)}
        return named | {"ready 0": origin + 9, "end 0": origin - 1}

    readings = [reading(10, 2, 0, 1), reading(20, 4, 0, 2), reading(30, 3, 0.5, 9)]
    assert adaptive._ready_times(readings, 3) == [2.5, 0.0, 2.0]


class ShapedLink:
    """Exchanges over a link that lets a burst pass for nothing, as a token bucket does."""

    def __init__(self, latency, bits_per_second, sent_share, burst=128 << 10, streams=4):
        self.latency, self.rate, self.sent_share = latency, bits_per_second / 8, sent_share
        self.burst, self.streams, self.probes = burst, streams, []

    def __call__(self, size):
        sent = size * self.streams * self.sent_share
        seconds = self.latency + max(0.0, sent - self.burst) / self.rate
        self.probes.append((size, seconds))
        return seconds


@pytest.mark.parametrize("bits_per_second", [25e6, 200e6, 1e9, 25e9])
@pytest.mark.parametrize("latency", [1e-4, 5e-3])
def test_a_burst_does_not_hide_the_rate(bits_per_second, latency):
    probe = ShapedLink(latency, bits_per_second, sent_share=1.5)
    link = link_cost.link_of(probe, streams=4, small_bytes=8 << 10)
    assert link.latency_seconds == pytest.approx(latency)
    # With one size above the smallest there is nothing to tell the burst by: 8 % of 1.5 MB.
    allowed = 0.09 if bits_per_second == 25e6 else 1e-9
    assert link.seconds_per_byte == pytest.approx(1.5 * 8 / bits_per_second, rel=allowed)


def test_probes_end_when_they_are_long_or_large():
    slow = ShapedLink(5e-3, 200e6, sent_share=1.5)
    link_cost.link_of(slow, 4, 4096)
    assert [size for size, _ in slow.probes] == [4096, 256 << 10, 1 << 20]
    assert slow.probes[-1][1] == pytest.approx(0.25, rel=0.02)
    fast = ShapedLink(1e-4, 100e9, sent_share=1.5)
    link_cost.link_of(fast, 4, 4096)
    assert [size for size, _ in fast.probes] == [4096, *(1 << p for p in (18, 20, 22, 24))]
    few = ShapedLink(1e-4, 100e9, sent_share=1.5)
    link_cost.link_of(few, 4, 4096, largest_bytes=2 << 20)
    assert [size for size, _ in few.probes] == [4096, 1 << 18, 1 << 20]


def test_noise_that_hides_the_rate_leaves_a_cost():
    link = link_cost.link_of(lambda size: 1e-3, streams=2)
    assert 0 < link.seconds_per_byte < 1e-10


class StoredTimes:
    """Stands in for a `Timeline`: the times of the last step that ran."""

    def __init__(self):
        self.times = {}

    def run(self, step):
        self.times = {f"tensor {i}": step + i for i in range(5)}

    def read(self):
        return self.times


def test_a_model_of_few_steps_does_not_keep_another_from_its_plan(monkeypatch):
    monkeypatch.setattr(adaptive, "Timeline", StoredTimes)
    fusion = adaptive.AdaptiveFusion()
    _, first = fusion.plan(SPECS)
    for step in range(3):
        first.run(step)
        assert not fusion.after_step()
    _, second = fusion.plan(SPECS[::-1])
    for step in range(4):
        second.run(step)
        assert not fusion.after_step()
    second.run(4)
    assert fusion.after_step()
    assert [specs for specs, *_ in fusion._ready()] == [SPECS[::-1]]


def test_what_no_step_runs_any_more_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(adaptive, "Timeline", StoredTimes)
    fusion = adaptive.AdaptiveFusion()
    _, timeline = fusion.plan(SPECS)
    timeline.run(0)
    for _ in range(20):
        assert fusion.wants_measurement and not fusion.after_step()
    assert not fusion.after_step() and not fusion.wants_measurement
