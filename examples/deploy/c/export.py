"""Writes boxes and greedy non-maximum suppression as C: `python export.py FOLDER`."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

import lowtide as lt


def nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """boxes: [N, 4] as x1, y1, x2, y2; scores: [N]. Returns the places of the boxes to keep."""
    order = scores.argsort(descending=True)
    boxes = boxes[order]
    low = torch.maximum(boxes[:, None, :2], boxes[:, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[:, 2:])
    inter = (high - low).clamp(min=0).prod(2)
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    iou = inter / (area[:, None] + area - inter)
    keep = torch.ones(boxes.shape[0], dtype=torch.bool)
    for i in range(boxes.shape[0]):
        if bool(keep[i]):
            keep[i + 1 :] &= iou[i, i + 1 :] <= threshold
    return order[keep]


def example(n: int) -> tuple[Tensor, Tensor, float]:
    corner = torch.rand(n, 2)
    return torch.cat([corner, corner + torch.rand(n, 2)], 1), torch.rand(n), 0.4


if __name__ == "__main__":
    torch.manual_seed(0)
    print(lt.export_c(lt.script(nms), sys.argv[1], example(60), name="boxes"))
