"""An ordinary distributed PyTorch script: it knows nothing of Heterosis."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(16, 1))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(20):
        inputs = torch.randn(64, 16)
        loss = ((model(inputs) - inputs.sum(dim=1, keepdim=True)) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
