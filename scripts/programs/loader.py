#!/usr/bin/python3
"""Reads images as a training program does: ImageFolder, and a DataLoader with 4 forked workers."""

import hashlib
import os

import torch
from torchvision import datasets, transforms

torch.manual_seed(3)
torch.set_num_threads(1)
folder = datasets.ImageFolder(os.environ["ROOT"] + "/images/train", transforms.ToTensor())
print(folder.classes, len(folder))
loader = torch.utils.data.DataLoader(
    folder,
    batch_size=32,
    shuffle=True,
    num_workers=4,
    multiprocessing_context="fork",
    persistent_workers=True,
)
for epoch in range(2):
    for images, labels in loader:
        digest = hashlib.sha256(images.numpy().tobytes()).hexdigest()
        print(epoch, tuple(images.shape), labels.tolist(), digest)
state = torch.load(os.environ["ROOT"] + "/records/checkpoint.pt", map_location="cpu")
print({name: (tuple(tensor.shape), tensor.sum().item()) for name, tensor in state.items()})
