"""One worker of PyTorch's DistributedDataParallel on gloo; runs in the environment of PyTorch.

The whole way of DDP is timed: gradients into buckets, all-reduce by its reducer or by one of
its communication hooks, back into the parameters' gradients. No forward or backward pass: a
function gives all gradients at once, as our own benchmark does.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from experiments.allreduce.peers import measuring


class GiveGradients(torch.autograd.Function):
    """Its value is 0, its derivative with respect to each parameter what was prepared."""

    @staticmethod
    def forward(ctx, prepared, *parameters):
        ctx.prepared = prepared
        return torch.zeros([])

    @staticmethod
    def backward(ctx, unused):
        # New tensors on the same memory, which autograd takes over without a copy.
        return None, *(gradient.detach() for gradient in ctx.prepared)


class Model(torch.nn.Module):
    """Parameters of the given shapes whose gradients are known beforehand."""

    def __init__(self, shapes, rank):
        super().__init__()
        self.parameters_ = torch.nn.ParameterList(torch.zeros(shape) for shape in shapes)
        generator = torch.Generator().manual_seed(0)
        # The same on all workers but for a factor, so that every sum is known.
        self.gradients = [
            (torch.rand(shape, generator=generator) + 0.5) * (rank + 1) for shape in shapes
        ]

    def forward(self):
        return GiveGradients.apply(self.gradients, *self.parameters_)


def one_bucket_at_a_time(state, bucket):
    """PowerSGD's hook, waited for.

    It sends several messages for a bucket, each when the one before has come back. With two
    buckets in flight the workers would send them in different orders, and gloo, which matches
    messages by their order, aborts.
    """
    reduced = powerSGD_hook.powerSGD_hook(state, bucket)
    reduced.wait()
    return reduced


def main():
    settings = measuring.settings()
    rank, workers = settings["rank"], settings["workers"]
    torch.set_num_threads(settings["threads"])
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{settings['leader']}:{settings['port']}",
        rank=rank,
        world_size=workers,
    )
    # PyTorch has a kernel's outputs first, by which PowerSGD makes matrices of them; we last.
    model = Model([shape[::-1] for shape in settings["shapes"]], rank)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if settings["method"] == "gloo+fp16":
        parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif settings["method"] == "gloo+powersgd":
        # Its default rank; 2 is the earliest step that its error feedback allows.
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=1, start_powerSGD_iter=2
        )
        parallel.register_comm_hook(state, one_bucket_at_a_time)

    def step():
        parallel.zero_grad(set_to_none=True)
        parallel().backward()

    measured = measuring.measure(step, dist.barrier, settings["repeats"])
    check(model, rank, workers)
    measuring.report(measured)
    # All is done and reported. Ending in order now and then aborts (SIGABRT), when the last
    # reference to gloo's threads is held by the callback of a hook that runs on one of them.
    os._exit(0)


def check(model, rank, workers):
    """DDP averages. PowerSGD is no sum, but sends vectors as they are."""
    for parameter, gradient in zip(model.parameters_, model.gradients, strict=True):
        if parameter.dim() == 1:
            expected = gradient[0].item() / (rank + 1) * (workers + 1) / 2
            measuring.expect(parameter.grad[0], expected, f"a gradient of {parameter.shape}")


if __name__ == "__main__":
    main()
