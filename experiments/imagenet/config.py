"""ImageNet recipes of others, ready to run, none of them run by us on the hardware they name.

    python experiments/train.py --config=light_128 --dry_run              # what it does and takes
    python experiments/train.py --config=light_128 --trial                # 3 steps a phase, here
    tfscale-launch local --workers=1 experiments/train.py -- --config=single_host_16 \\
        --data_dir=/data/imagenet

Time and accuracy in a docstring are those of the source, on its hardware and with its code; we
claim none. Speeds and links (`assumed_...`) are for `--dry_run` only. On other numbers of replicas
batch, learning rate and warm-up follow (`experiments/scaling.py`); a line says what they became.
"""

import dataclasses
import functools

from experiments.run_config import RunConfig

# Reference convergence points of MLPerf Training for ResNet-50 with LARS:
# batch: learning rate, epochs of warm-up, momentum, weight decay, epochs to 75.9 %.
MLPERF_POINTS = {
    4096: (10.0, 5.0, 0.9, 2e-4, 40.0),
    8192: (17.0, 5.0, 0.9, 2e-4, 42.0),
    13056: (12.8, 9.0, 0.9, 2.5e-5, 45.4),
    32768: (21.2, 16.0, 0.94, 2.5e-5, 56.0),
    49152: (19.4, 24.0, 0.952, 1e-4, 68.0),
    65536: (24.7, 31.0, 0.952, 1e-4, 84.5),
}


def imagenet():
    """What all of them share: ResNet-50 v1.5, 1.28 M pictures of 1,000 classes, 224 pixels."""
    return RunConfig(
        model_dir="runs/imagenet",
        train_images=1_281_167,
        num_classes=1000,
        model="resnet50",
        image_size=224,
        min_crop_area=0.08,
        eval_crop_fraction=0.875,
        flip=True,
        norm_span=128,
    )


def tpu_v3_pod():
    """1024 TPU v3 chips, batch 32768, LARS, batch norm over 64 examples: source 76.3 % in 2.2 min.

    Source: Ying et al. 2018, https://arxiv.org/abs/1811.06992 (hardware, batch, time, top-1);
    rate, warm-up and the "scaled" momentum from the same group's code for TPUs
    (github.com/tensorflow/tpu). That one adds the decay to the gradient before the trust ratio is
    taken, which counts it twice; ours does not. Weight decay is ours.
    Assumed speed: the source's 1.05 M images/s, exchange included, over 2,048 cores.
    """
    return dataclasses.replace(
        imagenet(),
        model_dir="runs/tpu_v3_pod",
        epochs=90,
        per_replica_batch_size=16,
        global_batch_size=32768,
        reference_batch_size=32768,
        reference_replicas=2048,
        peak_learning_rate=32.0,
        warmup_epochs=14.0,
        lars_momentum_form="scaled",
        norm_span=64,
        precision="mixed_bfloat16",
        assumed_workers=256,
        assumed_devices_per_worker=8,
        assumed_images_per_second=(513.0,),
    )


def mlperf(batch):
    """The MLPerf reference point of a batch (LARS, power-2 decay to 1e-4); source 75.9 % top-1.

    Source: reference convergence points of MLPerf Training, ResNet-50 (github.com/mlcommons). They
    name no hardware. The run is an epoch longer than the point took to the target. Label smoothing
    0.1 and batch norm over 128 examples are ours.
    Assumed: hosts of 8 H200 at 7,800 images/s each, from a result of MLPerf v4.0 (12.03 min on
    8 of them); a link of 200 Gbit/s for each host, which is ours.

    Args:
        batch: `int`, one of `MLPERF_POINTS`.
    """
    rate, warmup, momentum, decay, epochs = MLPERF_POINTS[batch]
    replicas = batch // 128
    devices = 8 if replicas % 8 == 0 else 6
    return dataclasses.replace(
        imagenet(),
        model_dir=f"runs/mlperf_{batch}",
        epochs=int(epochs) + 1 + (epochs % 1 > 0),
        per_replica_batch_size=128,
        global_batch_size=batch,
        reference_batch_size=batch,
        reference_replicas=replicas,
        peak_learning_rate=rate,
        end_learning_rate=1e-4,
        warmup_epochs=warmup,
        momentum=momentum,
        weight_decay=decay,
        precision="mixed_bfloat16",
        assumed_workers=replicas // devices,
        assumed_devices_per_worker=devices,
        assumed_images_per_second=(7800.0,),
        assumed_link="200gbit",
    )


def light_128():
    """128 V100, 25 Gbit/s, 28 epochs of 96 to 288 pixels, top-k first: source 93 % top-5 in 151 s.

    Source: Shi et al. 2020, https://arxiv.org/abs/2010.10458 (hardware, epochs, time, top-5: that
    is Tencent's Light). LARS (eta, clip, Nesterov, knots, momentum, crops, halved last batch) as in
    an open recipe of the same shape for as many GPUs, Alibaba's entry to DAWNBench. Sizes, epochs
    and batch of the phases, and the assumed images/s of one V100, are quoted from memory of a talk
    and unverified. Ours: 1 % for top-k, its warm-up, and that the momentum goes against the rate
    (from 0.98 to 0.9 and back), as Smith's 1cycle has it.
    """
    return dataclasses.replace(
        imagenet(),
        model_dir="runs/light_128",
        epochs=28,
        image_size=288,
        phase_epochs=(13, 11, 3, 1),
        phase_image_sizes=(96, 128, 224, 288),
        phase_batch_sizes=(32768, 32768, 32768, 16384),
        phase_min_crop_areas=(0.15, 0.15, 0.15, 0.5),
        per_replica_batch_size=256,
        global_batch_size=32768,
        reference_batch_size=32768,
        reference_replicas=128,
        learning_rate_epochs=(0.0, 14.0, 28.0),
        learning_rate_values=(0.0, 25.0, 0.2),
        momentum_epochs=(0.0, 14.0, 28.0),
        momentum_values=(0.98, 0.9, 0.98),
        nesterov=True,
        weight_decay=1e-4,
        lars_trust_coefficient=8e-4,
        lars_trust_clip=(1e-5, 1.0),
        rectangular_eval=True,
        norm_span=256,
        precision="mixed_float16",
        compression="topk",
        compression_epochs=(1, 13),
        compression_warmup_epochs=4,
        bucket_bytes="adaptive",
        assumed_workers=16,
        assumed_devices_per_worker=8,
        assumed_images_per_second=(4400.0, 3010.0, 1240.0, 710.0),
        assumed_link="25gbit",
    )


# Epochs at 160 pixels and at 192, of runs of so many.
_SINGLE_HOST_PHASES = {16: (12, 4), 32: (25, 7), 88: (71, 17)}


def single_host(epochs):
    """One host of 8 A100, SGD, 160 then 192 pixels: source 73.8 % (16 epochs) to 78.4 % (88).

    Source: FFCV's rn50 configurations (github.com/libffcv/ffcv-imagenet): rates, sizes, batch of
    1024, BlurPool, label smoothing, evaluation at 256 pixels with mirror images. The average of
    the weights is from MosaicML's recipes, its rate ours. Mosaic reaches 75.9 % in 23.8 min on the
    same hardware with another one. The weight decay of 1e-4 in their momentum is 1e-3 beside ours
    of 0.9. Assumed speed: ours, the order of an A100; name your own.

    Args:
        epochs: `int`, 16, 32 or 88.
    """
    return dataclasses.replace(
        imagenet(),
        model_dir=f"runs/single_host_{epochs}",
        epochs=epochs,
        image_size=192,
        eval_image_size=256,
        phase_epochs=_SINGLE_HOST_PHASES[epochs],
        phase_image_sizes=(160, 192),
        per_replica_batch_size=128,
        global_batch_size=1024,
        reference_batch_size=1024,
        reference_replicas=8,
        optimizer="sgd",
        learning_rate_epochs=(0.0, 2.0, float(epochs)),
        learning_rate_values=(1.7e-4, 1.7, 0.0),
        nesterov=False,
        weight_decay=1e-3,
        min_crop_area=0.08,
        blur_pool=True,
        flip_eval=True,
        ema=0.999,
        precision="mixed_bfloat16",
        assumed_workers=1,
        assumed_devices_per_worker=8,
        assumed_images_per_second=(3000.0,),
    )


def _named(function, value):
    """A recipe without arguments, with the docstring of the function that has one."""
    return functools.update_wrapper(functools.partial(function, value), function)


RECIPES = {
    "tpu_v3_pod": tpu_v3_pod,
    **{f"mlperf_{batch}": _named(mlperf, batch) for batch in MLPERF_POINTS},
    "light_128": light_128,
    **{f"single_host_{epochs}": _named(single_host, epochs) for epochs in _SINGLE_HOST_PHASES},
}
