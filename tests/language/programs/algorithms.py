"""Algorithms: decoding, dynamic programs, detection post-processing, text."""

from typing import Dict, List, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from tests.language.support import program


def _boxes() -> Tensor:
    return torch.tensor([[0.0, 0, 4, 4], [1, 1, 5, 5], [8, 8, 9, 9], [0, 0, 4, 3.9]])


def _area(box: Tensor) -> Tensor:
    return (box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1])


def _iou(a: Tensor, b: Tensor) -> Tensor:
    lt = torch.max(a[:, None, :2], b[:, :2])
    rb = torch.min(a[:, None, 2:], b[:, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[:, :, 0] * wh[:, :, 1]
    return inter / (_area(a)[:, None] + _area(b) - inter)


@program(args=lambda: (_boxes(), torch.tensor([0.9, 0.8, 0.7, 0.95]), 0.3))
def nms_by_loop(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    order = scores.argsort(descending=True)
    keep: List[Tensor] = []
    while order.numel() > 0:
        i = order[0]
        keep.append(i)
        if order.numel() == 1:
            break
        rest = order[1:]
        overlap = _iou(boxes[i].unsqueeze(0), boxes[rest])[0]
        order = rest[overlap <= threshold]
    return torch.stack(keep)


@program(args=lambda: (_boxes(), torch.tensor([0.9, 0.8, 0.7, 0.95]), 0.3))
def nms_by_flags(boxes: Tensor, scores: Tensor, threshold: float) -> List[int]:
    n = boxes.size(0)
    order: List[int] = scores.argsort(descending=True).tolist()
    iou = _iou(boxes, boxes)
    dropped = [False] * n
    keep: List[int] = []
    for a in range(n):
        i = order[a]
        if dropped[i]:
            continue
        keep.append(i)
        for j in order[a + 1 :]:
            if float(iou[i, j]) > threshold:
                dropped[j] = True
    return keep


@program(
    args=lambda: (torch.linspace(-1, 1, 12).reshape(4, 3), torch.linspace(0, 1, 9).reshape(3, 3)),
    torchscript=False,
)
def viterbi(emissions: Tensor, transitions: Tensor) -> Tuple[float, List[int]]:
    score = emissions[0]
    back: List[Tensor] = []
    for t in range(1, emissions.size(0)):
        total = score.unsqueeze(1) + transitions + emissions[t].unsqueeze(0)
        score, best = total.max(dim=0)
        back.append(best)
    top, last = score.max(dim=0)
    path = [int(last)]
    for best in reversed(back):
        path.append(int(best[path[-1]]))
    path.reverse()
    return float(top), path


@program(args=lambda: (torch.linspace(-3, 0, 15).reshape(5, 3), [1, 2]))
def ctc_forward(logp: Tensor, target: List[int]) -> Tensor:
    labels = [0]
    for t in target:
        labels.append(t)
        labels.append(0)
    s = len(labels)
    alpha = torch.full((s,), -1e30)
    alpha[0] = logp[0, 0]
    alpha[1] = logp[0, labels[1]]
    for t in range(1, logp.size(0)):
        new = alpha.clone()
        for j in range(s):
            terms = [alpha[j]]
            if j > 0:
                terms.append(alpha[j - 1])
            if j > 1 and labels[j] != 0 and labels[j] != labels[j - 2]:
                terms.append(alpha[j - 2])
            new[j] = torch.logsumexp(torch.stack(terms), 0) + logp[t, labels[j]]
        alpha = new
    return torch.logaddexp(alpha[-1], alpha[-2])


@program(args=lambda: (torch.tensor([0, 1, 1, 0, 1, 2, 2, 0]),))
def ctc_greedy_collapse(ids: Tensor) -> List[int]:
    out: List[int] = []
    previous = 0
    for i in range(ids.size(0)):
        c = int(ids[i].item())
        if c != 0 and c != previous:
            out.append(c)
        previous = c
    return out


class Beam(NamedTuple):
    score: float
    ids: List[int]


@program(args=lambda: (torch.linspace(-2, 0, 12).reshape(3, 4).sin(), 2))
def beam_search(logp: Tensor, width: int) -> List[Beam]:
    beams = [Beam(0.0, [])]
    for t in range(logp.size(0)):
        candidates: List[Beam] = []
        for beam in beams:
            for v in range(logp.size(1)):
                s = beam.score + float(logp[t, v])
                candidates.append(Beam(s, beam.ids + [v]))
        chosen: List[Beam] = []
        while len(chosen) < width:
            best = 0
            for i in range(1, len(candidates)):
                if candidates[i].score > candidates[best].score:
                    best = i
            chosen.append(candidates.pop(best))
        beams = chosen
    return beams


@program(args=lambda: (torch.linspace(-2, 0, 20).reshape(4, 5).cos(), 3))
def beam_search_tensors(logp: Tensor, k: int) -> Tuple[Tensor, Tensor]:
    scores = torch.zeros(1)
    ids = torch.zeros(1, 0, dtype=torch.long)
    v = logp.size(1)
    for t in range(logp.size(0)):
        total = (scores[:, None] + logp[t][None]).flatten()
        scores, flat = total.topk(min(k, total.numel()))
        row = torch.div(flat, v, rounding_mode="floor")
        ids = torch.cat([ids[row], (flat % v)[:, None]], dim=1)
    return scores, ids


@program(args=lambda: ([5, 3, 8, 1, 9, 2],))
def quicksort_with_stack(xs: List[int]) -> List[int]:
    stack = [(0, len(xs) - 1)]
    while len(stack) > 0:
        lo, hi = stack.pop()
        if lo >= hi:
            continue
        pivot = xs[hi]
        i = lo
        for j in range(lo, hi):
            if xs[j] < pivot:
                xs[i], xs[j] = xs[j], xs[i]
                i += 1
        xs[i], xs[hi] = xs[hi], xs[i]
        stack.append((lo, i - 1))
        stack.append((i + 1, hi))
    return xs


@program(args=lambda: ([1, 3, 5, 7, 9], 7))
def binary_search(xs: List[int], x: int) -> int:
    lo, hi = 0, len(xs)
    while lo < hi:
        mid = (lo + hi) // 2
        if xs[mid] < x:
            lo = mid + 1
        else:
            hi = mid
    return lo if lo < len(xs) and xs[lo] == x else -1


@program(args=lambda: ([3, 4, 5], [30, 50, 60], 8))
def knapsack(weights: List[int], values: List[int], capacity: int) -> int:
    best = [0] * (capacity + 1)
    for w, v in zip(weights, values):
        for c in range(capacity, w - 1, -1):
            best[c] = max(best[c], best[c - w] + v)
    return best[-1]


@program(args=lambda: ("AGCAT", "GAC"))
def longest_common_subsequence(a: str, b: str) -> str:
    table: List[List[str]] = []
    for _ in range(len(a) + 1):
        table.append([""] * (len(b) + 1))
    for i in range(len(a)):
        for j in range(len(b)):
            if a[i] == b[j]:
                table[i + 1][j + 1] = table[i][j] + a[i]
            elif len(table[i][j + 1]) >= len(table[i + 1][j]):
                table[i + 1][j + 1] = table[i][j + 1]
            else:
                table[i + 1][j + 1] = table[i + 1][j]
    return table[-1][-1]


@program(args=lambda: (torch.linspace(0, 1, 12).reshape(3, 4).sin(),))
def dynamic_time_warping(cost: Tensor) -> float:
    n, m = cost.shape
    d = torch.full((n + 1, m + 1), float("inf"))
    d[0, 0] = 0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            best = torch.min(torch.min(d[i - 1, j], d[i, j - 1]), d[i - 1, j - 1])
            d[i, j] = cost[i - 1, j - 1] + best
    return d[n, m].item()


@program(
    args=lambda: ({"lo": 0, "low": 1, "er": 2, "l": 3, "o": 4, "w": 5, "e": 6, "r": 7}, "lower low")
)
def greedy_tokenizer(vocab: Dict[str, int], text: str) -> List[int]:
    ids: List[int] = []
    for word in text.split():
        i = 0
        while i < len(word):
            j = len(word)
            while j > i and word[i:j] not in vocab:
                j -= 1
            if j == i:
                ids.append(-1)
                i += 1
            else:
                ids.append(vocab[word[i:j]])
                i = j
    return ids


@program(
    args=lambda: (["l", "o", "w", "e", "r"], {"l o": 0, "lo w": 1, "e r": 2}), torchscript=False
)
def byte_pair_merges(parts: List[str], ranks: Dict[str, int]) -> List[str]:
    while len(parts) > 1:
        best = -1
        best_rank = 10**6
        for i in range(len(parts) - 1):
            pair = parts[i] + " " + parts[i + 1]
            rank = ranks.get(pair)
            if rank is not None and rank < best_rank:
                best = i
                best_rank = rank
        if best < 0:
            break
        merged = parts[best] + parts[best + 1]
        parts = parts[:best] + [merged] + parts[best + 2 :]
    return parts


@program(args=lambda: (torch.tensor([[4.0, 1.0], [2.0, 3.0]]), 50))
def power_iteration(a: Tensor, n: int) -> Tuple[Tensor, float]:
    v = torch.ones(a.size(0))
    value = 0.0
    for _ in range(n):
        w = a @ v
        v = w / w.norm()
        new = float(v @ (a @ v))
        if abs(new - value) < 1e-7:
            value = new
            break
        value = new
    return v, value


@program(args=lambda: (torch.tensor([[0.0, 0.1], [0.2, 0], [5, 5.1], [5.2, 5]]), 2))
def k_means(points: Tensor, k: int) -> Tuple[Tensor, Tensor]:
    centres = points[:: points.size(0) // k][:k].clone()
    labels = torch.zeros(points.size(0), dtype=torch.long)
    for _ in range(10):
        new = torch.cdist(points, centres).argmin(dim=1)
        if torch.equal(new, labels):
            break
        labels = new
        for j in range(k):
            members = points[labels == j]
            if len(members) > 0:
                centres[j] = members.mean(dim=0)
    return centres, labels


@program(args=lambda: (torch.tensor([[4.0, 2.0], [2.0, 3.0]]),))
def cholesky_by_hand(a: Tensor) -> Tensor:
    n = a.size(0)
    low = torch.zeros_like(a)
    for i in range(n):
        for j in range(i + 1):
            s = (low[i, :j] * low[j, :j]).sum()
            if i == j:
                low[i, j] = torch.sqrt(a[i, i] - s)
            else:
                low[i, j] = (a[i, j] - s) / low[j, j]
    return low


@program(args=lambda: (torch.tensor([0.1, 0.4, 0.2, 0.3]), 0.6, 3))
def top_p_filter(p: Tensor, top_p: float, top_k: Optional[int] = None) -> Tensor:
    values, order = p.sort(descending=True)
    drop = values.cumsum(0) - values > top_p
    if top_k is not None and top_k < p.numel():
        drop[top_k:] = True
    out = p.clone()
    out[order[drop]] = 0
    return out / out.sum()


@program(args=lambda: ([[1, 2, 3], [4], [5, 6]], 0))
def pad_sequences(rows: List[List[int]], pad: int) -> Tuple[Tensor, Tensor]:
    longest = max([len(r) for r in rows])
    out = torch.full((len(rows), longest), pad)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, row in enumerate(rows):
        for j, v in enumerate(row):
            out[i, j] = v
            mask[i, j] = True
    return out, mask


@program(args=lambda: ([torch.ones(2, 3), torch.zeros(1, 3)],))
def batch_images(images: List[Tensor]) -> Tuple[Tensor, List[Tuple[int, int]]]:
    sizes = [(int(im.shape[0]), int(im.shape[1])) for im in images]
    h = max([s[0] for s in sizes])
    w = max([s[1] for s in sizes])
    batch = torch.zeros(len(images), h, w)
    for i in range(len(images)):
        a, b = sizes[i]
        batch[i, :a, :b].copy_(images[i] + i)
    return batch, sizes


@program(args=lambda: ({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []},), torchscript=False)
def topological_order(graph: Dict[str, List[str]]) -> List[str]:
    degree: Dict[str, int] = {}
    for node in graph:
        degree[node] = 0
    for node, others in graph.items():
        for o in others:
            degree[o] += 1
    ready = [n for n in graph if degree[n] == 0]
    order: List[str] = []
    while ready:
        node = ready.pop(0)
        order.append(node)
        for o in graph[node]:
            degree[o] -= 1
            if degree[o] == 0:
                ready.append(o)
    return order


@program(args=lambda: ([[0, 2, 9], [2, 0, 4], [9, 4, 0]],))
def floyd_warshall(d: List[List[int]]) -> List[List[int]]:
    n = len(d)
    for k in range(n):
        for i in range(n):
            for j in range(n):
                d[i][j] = min(d[i][j], d[i][k] + d[k][j])
    return d


@program(args=lambda: ("(a[b]{c})", "(]"))
def balanced_brackets(a: str, b: str) -> List[bool]:
    closing = {")": "(", "]": "[", "}": "{"}
    out: List[bool] = []
    for s in [a, b]:
        stack: List[str] = []
        good = True
        for c in s:
            if c in "([{":
                stack.append(c)
            elif c in closing:
                if len(stack) == 0 or stack.pop() != closing[c]:
                    good = False
                    break
        out.append(good and len(stack) == 0)
    return out


@program(args=lambda: ("name=lowtide;n=3;rate=0.5",))
def parse_settings(text: str) -> Tuple[str, int, float]:
    table: Dict[str, str] = {}
    for part in text.split(";"):
        fields = part.split("=")
        assert len(fields) == 2, "bad field"
        table[fields[0].strip()] = fields[1]
    return table["name"], int(table["n"]), float(table["rate"])


@program(args=lambda: (torch.tensor([1.0, 2.0]), 20))
def gradient_descent_by_hand(x: Tensor, n: int) -> Tuple[Tensor, List[float]]:
    m = torch.zeros_like(x)
    v = torch.zeros_like(x)
    losses: List[float] = []
    for t in range(1, n + 1):
        g = 2 * (x - 3)
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        x = x - 0.1 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        losses.append(float(((x - 3) ** 2).sum()))
    return x, losses


@program(args=lambda: (torch.tensor([[0, 1, 0], [0, 1, 0], [0, 1, 0]]), 2))
def game_of_life(grid: Tensor, n: int) -> Tensor:
    for _ in range(n):
        new = torch.zeros_like(grid)
        for i in range(grid.size(0)):
            for j in range(grid.size(1)):
                near = grid[max(0, i - 1) : i + 2, max(0, j - 1) : j + 2].sum() - grid[i, j]
                if near == 3 or (near == 2 and grid[i, j] == 1):
                    new[i, j] = 1
        grid = new
    return grid
