"""The processes that share one run, where torchrun started several."""

from typing import Any

from torch import Tensor

from headwise.training.run import Run


class Workers:
    """The processes that share a run (one, unless torchrun started more): each computes a part of every batch."""

    def __init__(self, run: Run) -> None:
        self.count, self.number = run.execution.devices, 0
        if self.count > 1:
            import torch.distributed as dist

            if not dist.is_initialized():
                dist.init_process_group("nccl" if run.execution.device == "cuda" else "gloo")
            if dist.get_world_size() != self.count:
                raise ValueError(f"the run wants {self.count} processes, but {dist.get_world_size()} were started")
            self.number = dist.get_rank()

    @property
    def first(self) -> bool:
        return self.number == 0

    def share(self, value: Any) -> Any:
        """What the first process has: the others may not reach its files, or look for them too early."""
        if self.count > 1:
            import torch.distributed as dist

            box = [value]
            dist.broadcast_object_list(box)
            value = box[0]
        return value

    def average(self, tensors: list[Tensor]) -> None:
        if self.count > 1:
            import torch.distributed as dist

            for tensor in tensors:
                dist.all_reduce(tensor)
                tensor /= self.count
