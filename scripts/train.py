#!/usr/bin/env python3
"""train.py DIR [MODEL]: trains a small model on DIR/train for an epoch, tests it on DIR/val, and saves
it as MODEL.

Both are folders of images by class. One process of each node, as srun or mpirun starts them, finds
rank 0 by MASTER_ADDR and MASTER_PORT; a single one trains alone. Needs PyTorch and torchvision
(Debian: python3-torch, python3-torchvision).
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms


def variable(*names, default):
    """The first of these variables of the environment that is set."""
    return int(next((os.environ[name] for name in names if name in os.environ), default))


def loader(root, rank, world):
    """Batches of this process's share of the images, read by forked workers."""
    transform = transforms.Compose([transforms.Resize(32), transforms.ToTensor()])
    images = datasets.ImageFolder(root, transform)
    share = DistributedSampler(images, world, rank, seed=1)
    return DataLoader(images, batch_size=16, sampler=share, num_workers=2)


def main():
    root = sys.argv[1]
    rank = variable("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", default=0)
    world = variable("SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", default=1)
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(1)
    train, val = (loader(f"{root}/{part}", rank, world) for part in ["train", "val"])
    classes = len(train.dataset.classes)
    convolution = [nn.Conv2d(3, 16, 5, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    layers = nn.Sequential(*convolution, nn.Flatten(), nn.Linear(16, classes))
    model = nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for images, labels in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    counts = torch.zeros(2)
    with torch.no_grad():
        for images, labels in val:
            counts += torch.tensor([(model(images).argmax(1) == labels).sum(), len(labels)])
    dist.all_reduce(counts)
    print(f"rank {rank} of {world}: {len(train.sampler)} images, loss {loss.item():.2f}")
    if rank == 0:
        print(f"accuracy {(counts[0] / counts[1]).item():.2f} on {int(counts[1])} images")
        if len(sys.argv) > 2:
            torch.save(layers.state_dict(), sys.argv[2])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
