"""ResNet-8 of bottleneck blocks, tfscale's and tf-models-official's: one architecture."""

from official.vision.configs import backbones, common, image_classification
from official.vision.modeling.backbones import resnet as their_resnet
from official.vision.tasks.image_classification import ImageClassificationTask

from tfscale import keras
from tfscale.models import resnet as our_resnet

DEPTHS, FILTERS = (1, 1), (64, 128)
# Their table has no small network of bottleneck blocks, and its basic blocks differ from ours by a
# projection in the first stage.
MODEL_ID = 8
their_resnet.RESNET_SPECS[MODEL_ID] = [
    ("bottleneck", filters, depth) for filters, depth in zip(FILTERS, DEPTHS, strict=True)
]
NORM = {"momentum": 0.9, "epsilon": 1e-5}


def task(settings, seed=None, synchronized=False):
    """Returns their `ImageClassificationTask` of the network, the records and the plain loss.

    Args:
        settings: `Settings`.
        seed: `int`, of their reader.
        synchronized: `bool`, whether batch norm has the statistics of all replicas.
    """
    size = [settings.image_size] * 2
    config = image_classification.ImageClassificationTask(
        model=image_classification.ImageClassificationModel(
            num_classes=10,
            input_size=[*size, 3],
            backbone=backbones.Backbone(
                type="resnet",
                resnet=backbones.ResNet(model_id=MODEL_ID, depth_multiplier=settings.width),
            ),
            norm_activation=common.NormActivation(
                use_sync_bn=synchronized,
                norm_momentum=NORM["momentum"],
                norm_epsilon=NORM["epsilon"],
            ),
        ),
        losses=image_classification.Losses(one_hot=False),
        train_data=image_classification.DataConfig(
            input_path=str(settings.records / "train-*.tfrecord"),
            is_training=True,
            global_batch_size=settings.batch,
            aug_crop=False,
            seed=seed,
        ),
    )
    return ImageClassificationTask(config)


def ours(settings, normalized=False, synchronized=False):
    """Returns tfscale's network, from pixels (or normalised images) to logits."""

    def norm(**kwargs):
        return keras.layers.BatchNormalization(synchronized=synchronized, **NORM, **kwargs)

    pixels = {"mean": (0, 0, 0), "std": (1, 1, 1)} if normalized else {}
    return our_resnet.resnet(
        DEPTHS,
        FILTERS,
        input_shape=(settings.image_size, settings.image_size, 3),
        num_classes=10,
        norm=norm,
        activation=None,
        width=settings.width,
        **pixels,
    )


def theirs(settings, normalized=False, synchronized=False):
    """Returns tf-models-official's, which takes normalised images; for pixels with a layer more."""
    model = task(settings, synchronized=synchronized).build_model()
    if normalized:
        return model
    images = keras.Input((settings.image_size, settings.image_size, 3))
    mean, std = our_resnet.IMAGENET_MEAN, our_resnet.IMAGENET_STD
    normalize = keras.layers.Rescaling(
        [1 / s for s in std], [-m / s for m, s in zip(mean, std, strict=True)]
    )
    return keras.Model(images, model(normalize(images)))


def start_theirs_as_ours(model, start):
    """Gives the variables of their model the values of ours, each to its counterpart.

    Args:
        model: of `theirs`.
        start: of `ours`, the same width. Moving statistics, which begin alike, are left alone.
    """
    values = [v.numpy() for name in _in_their_order() for v in _trainable(start, name)]
    for variable, value in zip(model.trainable_variables, values, strict=True):
        variable.assign(value)


def _trainable(model, name):
    return model.get_layer(name).trainable_variables


def _in_their_order():
    """Names of our layers with weights, in the order in which their model lists its own."""
    parts = ("shortcut_conv", "shortcut_bn", "conv1", "bn1", "conv2", "bn2", "conv3", "bn3")
    stages = range(1, len(DEPTHS) + 1)
    blocks = [f"stage{stage}_block1_{part}" for stage in stages for part in parts]
    return ["stem_conv", "stem_bn", *blocks, "head"]
