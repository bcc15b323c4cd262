"""Trains a small network on CIFAR-10 with Lightning. An example, read by tests/test_skeleton.py and never run."""

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import CIFAR10

BATCH = 128


class Network(nn.Module):
    def __init__(self, classes, width=64):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(2 * width, classes),
        )

    def forward(self, images):
        return self.layers(images)


class Classifier(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.network = Network(10, width=96)

    def training_step(self, batch, batch_idx):
        images, labels = batch
        loss = F.cross_entropy(self.network(images), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.network.parameters(), lr=self.hparams.lr)


class Images(L.LightningDataModule):
    def train_dataloader(self):
        changes = transforms.Compose([transforms.RandomCrop(32, padding=4), transforms.ToTensor()])
        return DataLoader(CIFAR10("data", train=True, transform=changes), batch_size=BATCH, shuffle=True)

    def val_dataloader(self):
        return DataLoader(CIFAR10("data", train=False, transform=transforms.ToTensor()), batch_size=500)


def main():
    trainer = L.Trainer(
        max_epochs=30, accelerator="gpu", devices=4, strategy="ddp", precision="16-mixed", gradient_clip_val=1.0
    )
    trainer.fit(Classifier(), datamodule=Images())


if __name__ == "__main__":
    main()
