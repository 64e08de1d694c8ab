"""A bare loop on one thread: simplejpeg's fast mode, OpenCV's resize, files in memory."""

import os

import cv2
import numpy as np
import simplejpeg

from experiments.input import measuring


def read(files, path):
    """Returns (bytes, windows) for each picture of the bound's list."""
    pictures = []
    with open(path) as lines:
        for line in lines:
            name, count, *numbers = line.split()
            with open(os.path.join(files, name), "rb") as file:
                encoded = file.read()
            pictures.append((encoded, np.array(numbers, int).reshape(int(count), 5).tolist()))
    return pictures


def batches(settings):
    """Yields batches of pictures, endlessly."""
    pictures, size = read(settings["files"], settings["windows"]), settings["image_size"]
    done = 0
    while True:
        batch = np.empty([settings["batch"], size, size, 3], np.uint8)
        for row in batch:
            encoded, cuts = pictures[done % len(pictures)]
            top, left, height, width, mirrored = cuts[done // len(pictures) % len(cuts)]
            image = simplejpeg.decode_jpeg(encoded, "RGB", fastdct=True, fastupsample=True)
            image = image[top : top + height, left : left + width]
            cv2.resize(image, (size, size), row, interpolation=cv2.INTER_LINEAR)
            if mirrored:
                cv2.flip(row, 1, row)
            done += 1
        yield batch


def main():
    cv2.setNumThreads(0)
    settings = measuring.settings()
    measuring.serve(batches(settings), mean_area=settings["mean_area"])


if __name__ == "__main__":
    main()
