"""create_strategy: which strategy where, and the errors that explain what to do."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.test_all_reduce import distributed
from tfscale.distribute import _tf_private, strategy
from tfscale.distribute.all_reduce import Hierarchical2DAllReduce
from tfscale.distribute.compression import TopK
from tfscale.distribute.devices import LocalDevices
from tfscale.distribute.strategy import create_strategy, topology_of

WORKERS = ["127.0.0.1:1", "127.0.0.1:2"]


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch):
    """As if no strategy had been made before, and nothing were set."""
    monkeypatch.setattr(strategy, "_joined", None)
    for name in ("TF_CONFIG", "TFSCALE_DEVICES_PER_WORKER", *strategy._TPU_VARIABLES):
        monkeypatch.delenv(name, raising=False)


def set_tf_config(monkeypatch, cluster, kind="worker", index=0):
    task = {"type": kind, "index": index}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))


def test_auto_on_one_and_on_several_devices(monkeypatch):
    assert isinstance(create_strategy(), tf.distribute.OneDeviceStrategy)
    several = create_strategy(devices_per_worker=3)
    assert isinstance(several, tf.distribute.MirroredStrategy)
    assert topology_of(several).devices_per_worker == several.num_replicas_in_sync == 3
    monkeypatch.setenv("TFSCALE_DEVICES_PER_WORKER", "2")
    assert create_strategy().num_replicas_in_sync == 2
    assert create_strategy("one_device").num_replicas_in_sync == 1
    assert create_strategy(devices_per_worker=4).num_replicas_in_sync == 4


def test_an_evaluator_gets_a_local_strategy(monkeypatch):
    set_tf_config(monkeypatch, {"worker": WORKERS, "evaluator": ["127.0.0.1:3"]}, "evaluator")
    assert isinstance(create_strategy(), tf.distribute.OneDeviceStrategy)
    assert create_strategy("mirrored", devices_per_worker=2).num_replicas_in_sync == 2
    with pytest.raises(ValueError, match="evaluator"):
        create_strategy("multi_worker_mirrored")


def test_unknown_kind_lists_those_allowed():
    with pytest.raises(ValueError, match="'horovod'; choose one of auto, one_device, mirrored"):
        create_strategy("horovod")


def test_multi_worker_needs_tf_config(monkeypatch):
    for text in (None, "", "{}"):
        if text is not None:
            monkeypatch.setenv("TF_CONFIG", text)
        with pytest.raises(ValueError, match="needs the list of workers in TF_CONFIG"):
            create_strategy("multi_worker_mirrored")


@pytest.mark.parametrize("kind", ["one_device", "mirrored"])
def test_local_kinds_refuse_a_cluster(monkeypatch, kind):
    set_tf_config(monkeypatch, {"worker": WORKERS})
    with pytest.raises(ValueError, match="TF_CONFIG names 2 workers"):
        create_strategy(kind)


@pytest.mark.parametrize("kind", ["auto", "multi_worker_mirrored"])
def test_tensorflow_touched_too_early(monkeypatch, kind):
    tf.constant(1)
    set_tf_config(monkeypatch, {"worker": WORKERS})
    with pytest.raises(RuntimeError, match="already started its devices.*before the first tensor"):
        create_strategy(kind)


def test_tf_config_may_not_change(monkeypatch):
    create_strategy()
    set_tf_config(monkeypatch, {"worker": WORKERS})
    with pytest.raises(RuntimeError, match="TF_CONFIG has changed.*127.0.0.1:1"):
        create_strategy()


def test_more_devices_than_tensorflow_started_with():
    tf.constant(1)
    with pytest.raises(RuntimeError, match="5 devices .* already started with 4 CPU devices"):
        create_strategy("mirrored", devices_per_worker=5)


@pytest.mark.parametrize("count", [0, -1, 1.5, "two", True])
def test_devices_per_worker_is_a_positive_whole_number(count):
    with pytest.raises(ValueError, match=f"devices_per_worker={count!r}"):
        create_strategy(devices_per_worker=count)


def test_devices_per_worker_of_the_environment(monkeypatch):
    monkeypatch.setenv("TFSCALE_DEVICES_PER_WORKER", "many")
    with pytest.raises(ValueError, match="TFSCALE_DEVICES_PER_WORKER='many'"):
        create_strategy()


def test_one_device_has_one_replica():
    with pytest.raises(ValueError, match="use 'mirrored'"):
        create_strategy("one_device", devices_per_worker=2)


def test_gpus_that_are_promised_but_absent(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(RuntimeError, match="CUDA_VISIBLE_DEVICES=0,1 promises 2 GPUs"):
        create_strategy()


def test_all_gpus_by_default(monkeypatch):
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(2)]
    stock = tf.config.list_physical_devices
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind=None: gpus if kind == "GPU" else stock(kind)
    )
    monkeypatch.setattr(tf.config, "get_logical_device_configuration", lambda device: None)
    assert LocalDevices.find().names() == ("/device:GPU:0", "/device:GPU:1")
    assert LocalDevices.find(1).names() == ("/device:GPU:0",)
    with pytest.raises(RuntimeError, match="3 devices per worker .* sees 2 GPUs: /physical_device"):
        LocalDevices.find(3)


def test_cross_device_ops_argument():
    def operation(given):
        made = create_strategy("mirrored", cross_device_ops=given, devices_per_worker=2)
        return _tf_private.cross_device_ops_of(made)

    assert isinstance(operation(None), Hierarchical2DAllReduce)
    assert not isinstance(operation("stock"), Hierarchical2DAllReduce)
    own = tf.distribute.ReductionToOneDevice()
    assert operation(own) is own
    with pytest.raises(TypeError, match="None, 'stock' or an instance of CrossDeviceOps"):
        operation("ring")
    with pytest.raises(ValueError, match="2 x 2 = 4 cells"):
        operation(Hierarchical2DAllReduce(worker_grid=(2, 2)))


def test_multi_worker_takes_only_ours(monkeypatch):
    set_tf_config(monkeypatch, {"worker": WORKERS})
    with pytest.raises(TypeError, match="Hierarchical2DAllReduce"):
        create_strategy(cross_device_ops=tf.distribute.ReductionToOneDevice())
    with pytest.raises(ValueError, match="1 x 3 = 3 cells, but there are 2 workers"):
        create_strategy(cross_device_ops=Hierarchical2DAllReduce(worker_grid=(1, 3)))


def test_two_strategies_of_other_sizes():
    for count in (2, 4):
        made = create_strategy("mirrored", devices_per_worker=count)
        value = distributed(made, (3,), "float32")
        reduced = made.extended.batch_reduce_to(tf.distribute.ReduceOp.SUM, [(value, value)])
        expected = sum(np.float64(v) for v in value.values)
        np.testing.assert_allclose(reduced[0].values[0], expected, rtol=1e-5)


def test_topology_of_strategies_that_are_not_ours():
    assert topology_of(tf.distribute.get_strategy()).num_replicas == 1
    stock = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert (topology_of(stock).workers, topology_of(stock).devices_per_worker) == (1, 2)


def test_no_tpu_is_said_plainly():
    with pytest.raises(RuntimeError, match="found no TPU: none of TPU_NAME"):
        create_strategy("tpu")


def test_tpu_is_connected_initialised_and_used_in_this_order(monkeypatch):
    """No TPU here: only the order of the calls is checked, against stand-ins."""
    calls = []

    class Resolver:
        def __init__(self, tpu):
            calls.append(("resolve", tpu))

    class Strategy:
        def __init__(self, resolver):
            calls.append("strategy")

    monkeypatch.setenv("TPU_NAME", "my-pod")
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", Resolver)
    monkeypatch.setattr(
        tf.config, "experimental_connect_to_cluster", lambda _: calls.append("connect")
    )
    monkeypatch.setattr(
        tf.tpu.experimental, "initialize_tpu_system", lambda _: calls.append("initialise")
    )
    monkeypatch.setattr(tf.distribute, "TPUStrategy", Strategy)
    create_strategy("auto")
    assert calls == [("resolve", "my-pod"), "connect", "initialise", "strategy"]
    monkeypatch.setenv("TPU_NAME", "local")
    calls.clear()
    create_strategy("tpu")
    assert "connect" not in calls


@pytest.mark.slow
def test_importing_and_parsing_leave_the_runtime_alone():
    code = """
import tfscale.distribute.strategy, tfscale.distribute.agreement
from tfscale import testing
from tfscale.distribute.all_reduce import Hierarchical2DAllReduce
Hierarchical2DAllReduce(compression="float16")
testing.set_logical_devices(3)
import tensorflow as tf
assert len(tf.config.list_logical_devices("CPU")) == 3
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_velocity_that_nobody_would_keep_is_refused():
    operation = Hierarchical2DAllReduce(TopK(0.01, momentum=0.9))
    with pytest.raises(ValueError, match="momentum=0.9 would be lost"):
        create_strategy("one_device", cross_device_ops=operation)


@pytest.mark.parametrize("seconds", [float("nan"), -1, 0, float("inf"), "x", True])
def test_a_timeout_is_a_number_above_0(seconds):
    with pytest.raises(ValueError, match="timeout_seconds must be a number of seconds above 0"):
        create_strategy(timeout_seconds=seconds)
