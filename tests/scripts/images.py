"""Trains an image classifier on several GPUs. An example of a script, read by tests/test_skeleton.py and never run."""

import argparse
import os

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms


def arguments():
    parser = argparse.ArgumentParser(description="image classification")
    parser.add_argument("data", help="folder with train and val")
    parser.add_argument("--arch", default="resnet50", help="network of torchvision")
    parser.add_argument("--epochs", default=90, type=int)
    parser.add_argument("-b", "--batch-size", default=256, type=int, help="images of all GPUs of the node")
    parser.add_argument("--opt", default="sgd", choices=["sgd", "adamw"])
    parser.add_argument("--lr", default=0.1, type=float)
    parser.add_argument("--no-amp", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--clip", default=None, type=float)
    return parser.parse_args()


def loaders(args):
    train = datasets.ImageFolder(
        os.path.join(args.data, "train"),
        transforms.Compose(
            [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
        ),
    )
    val = datasets.ImageFolder(
        os.path.join(args.data, "val"),
        transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()]),
    )
    sampler = DistributedSampler(train)
    train_loader = DataLoader(train, batch_size=args.batch_size, sampler=sampler, num_workers=8, pin_memory=True)
    val_loader = DataLoader(val, batch_size=512, num_workers=8)
    return train_loader, val_loader


def main():
    args = arguments()
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    gpus_of_node = torch.cuda.device_count()
    args.batch_size = args.batch_size // gpus_of_node
    device = torch.device("cuda", local)
    model = torchvision.models.get_model(args.arch, weights=None).to(device)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    model = DistributedDataParallel(model, device_ids=[local])
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    if args.opt == "sgd":
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda", enabled=not args.no_amp)
    train_loader, val_loader = loaders(args)
    for epoch in range(args.epochs):
        train_loader.sampler.set_epoch(epoch)
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            with torch.autocast("cuda", enabled=not args.no_amp):
                loss = criterion(model(images), labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if args.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            scaler.step(optimizer)
            scaler.update()


if __name__ == "__main__":
    main()
