"""The GPUs of this machine, to be shared among workers or trials."""

from pathlib import Path


def visible_gpus(environ, devices=Path("/dev")):
    """The ids of the NVIDIA GPUs that a program would see, as `CUDA_VISIBLE_DEVICES` names them."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        numbers = (path.name.removeprefix("nvidia") for path in devices.glob("nvidia[0-9]*"))
        return [str(number) for number in sorted(int(n) for n in numbers if n.isdigit())]
    ids = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry or entry.startswith("-"):
            break  # CUDA ignores everything after the first invalid id.
        ids.append(entry)
    return ids
