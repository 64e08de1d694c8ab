"""torchvision: ImageFolder, transforms on PIL, DataLoader with one process for each core."""

import json

import torch
from torch.utils.data import DataLoader, Sampler
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from experiments.input import measuring

MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ROUNDS = 8  # windows of each picture in `mean_area`


class Endless(Sampler):
    """Epoch after epoch in random orders, so that workers need not wait at the end of one."""

    def __init__(self, count):
        self._count = count

    def __iter__(self):
        while True:
            yield from torch.randperm(self._count).tolist()


def batches(settings):
    """Yields batches of pictures [n, 3, height, width], endlessly."""
    steps = [
        v2.RandomResizedCrop(settings["image_size"]),
        v2.RandomHorizontalFlip(),
        v2.PILToTensor(),
    ]
    if settings["pipeline"] == "torchvision_float":
        steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, SPREAD)]
    dataset = ImageFolder(settings["files"], v2.Compose(steps))
    loader = DataLoader(
        dataset,
        settings["batch"],
        sampler=Endless(len(dataset)),
        num_workers=settings["threads"],
        drop_last=True,
    )
    for images, _ in loader:
        yield images


def mean_area(listing):
    """Returns the mean share of a picture's area in RandomResizedCrop's windows."""
    with open(listing) as file:
        shapes = [entry[2:] for entry in json.load(file)]
    total = 0.0
    for height, width in shapes * ROUNDS:
        picture = torch.empty(1, 1, 1).expand(3, height, width)
        _, _, rows, columns = v2.RandomResizedCrop.get_params(
            picture, scale=(0.08, 1.0), ratio=(3 / 4, 4 / 3)
        )
        total += rows * columns / (height * width)
    return total / (len(shapes) * ROUNDS)


def main():
    settings = measuring.settings()
    area = mean_area(settings["listing"])
    # The workers have a core each; the main process only passes their batches on.
    torch.set_num_threads(1)
    measuring.serve(batches(settings), mean_area=area)


if __name__ == "__main__":
    main()
