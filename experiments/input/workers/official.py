"""tf-models-official's image classification input, by its own task with its own defaults."""

from official.vision.configs import image_classification as configs
from official.vision.tasks import image_classification as tasks

from experiments.input import measuring
from experiments.input.workers import sampler


def batches(settings):
    """Yields batches of pictures, endlessly."""
    size = settings["image_size"]
    data = configs.DataConfig(
        input_path=settings["paths"],
        global_batch_size=settings["batch"],
        # Its 10,000 would hold every picture many times over.
        shuffle_buffer_size=min(10_000, settings["count"]),
    )
    model = configs.ImageClassificationModel(num_classes=1000, input_size=[size, size, 3])
    task = tasks.ImageClassificationTask(
        configs.ImageClassificationTask(model=model, train_data=data)
    )
    for images, _ in task.build_inputs(data):
        yield images


def main():
    settings = measuring.settings()
    area = sampler.mean_area(settings["listing"])
    measuring.serve(batches(settings), mean_area=area)


if __name__ == "__main__":
    main()
