"""Dicts: methods, iteration, comprehensions, nested values, arguments changed in place."""

from typing import Dict, List, Optional, Tuple

import torch

from tests.language.support import program


@program(args=lambda: (3,))
def literal(n: int) -> Dict[str, int]:
    return {"a": n, "b": n + 1}


@program(args=lambda: ({"a": 1},))
def set_and_read(d: Dict[str, int]) -> int:
    d["b"] = 2
    d["a"] = 10
    return d["a"] + d["b"]


@program(args=lambda: ({"a": 1},))
def get_with_default(d: Dict[str, int]) -> Tuple[int, int]:
    return d.get("a", 5), d.get("z", 5)


@program(args=lambda: ({"a": 1},))
def get_optional(d: Dict[str, int]) -> Tuple[Optional[int], Optional[int]]:
    return d.get("a"), d.get("z")


@program(args=lambda: ({"a": 1},))
def setdefault(d: Dict[str, int]) -> Tuple[int, int]:
    return d.setdefault("a", 9), d.setdefault("b", 9)


@program(args=lambda: ({"a": [1]},), torchscript=False)
def setdefault_list(d: Dict[str, List[int]]) -> int:
    d.setdefault("a", []).append(2)
    d.setdefault("b", []).append(3)
    return len(d)


@program(args=lambda: ({"a": 1, "b": 2},))
def pops(d: Dict[str, int]) -> Tuple[int, int]:
    return d.pop("a"), d.pop("q", -1)


@program(args=lambda: ({"a": 1},))
def popitem(d: Dict[str, int]) -> Tuple[str, int]:
    return d.popitem()


@program(args=lambda: ({"a": 1}, {"a": 5, "b": 2}))
def update(d: Dict[str, int], e: Dict[str, int]) -> Dict[str, int]:
    d.update(e)
    return d


@program(args=lambda: ({"b": 1, "a": 2},))
def keys_values_items(d: Dict[str, int]) -> Tuple[List[str], List[int], List[Tuple[str, int]]]:
    return list(d.keys()), list(d.values()), list(d.items())


@program(args=lambda: ({"a": 1, "b": 2},))
def deleting(d: Dict[str, int]) -> int:
    del d["a"]
    return len(d)


@program(args=lambda: ({"a": 1},))
def membership(d: Dict[str, int]) -> List[bool]:
    return ["a" in d, "b" in d, "b" not in d]


@program(args=lambda: ({"a": 1},))
def copy_and_clear(d: Dict[str, int]) -> Dict[str, int]:
    e = d.copy()
    d.clear()
    e["n"] = 3
    return e


@program(args=lambda: ({"a": 1, "b": 2},))
def iteration_in_order(d: Dict[str, int]) -> str:
    d["0"] = 7
    s = ""
    for k in d:
        s += k + str(d[k])
    return s


@program(args=lambda: ({3: 1.5, 1: 2.5},))
def int_keys(d: Dict[int, float]) -> float:
    total = 0.0
    for k, v in d.items():
        total += k * v
    return total


@program(args=lambda: ({1.5: "a"},))
def float_keys(d: Dict[float, str]) -> str:
    return d[1.5]


@program(args=lambda: (2,))
def bool_keys(n: int) -> Dict[bool, int]:
    d: Dict[bool, int] = {}
    for i in range(5):
        k = i % n == 0
        if k not in d:
            d[k] = 0
        d[k] += 1
    return d


@program(args=lambda: (3,))
def comprehension(n: int) -> Dict[int, int]:
    return {i: i * i for i in range(n)}


@program(args=lambda: ({"a": 1, "b": 2},))
def comprehension_over_items(d: Dict[str, int]) -> Dict[str, int]:
    return {k: v + 1 for k, v in d.items()}


@program(args=lambda: ({"a": 1, "b": 2},), torchscript=False)
def comprehension_inverted_with_if(d: Dict[str, int]) -> Dict[int, str]:
    return {v: k for k, v in d.items() if v > 1}


@program(args=lambda: (["a", "b"], [1, 2]))
def comprehension_over_zip(ks: List[str], vs: List[int]) -> Dict[str, int]:
    return {k: v for k, v in zip(ks, vs)}


@program(args=lambda: (["a", "b"], [1, 2]))
def dict_of_zip(ks: List[str], vs: List[int]) -> Dict[str, int]:
    return dict(zip(ks, vs))


@program(args=lambda: ({"a": 1},))
def dict_copies(d: Dict[str, int]) -> Dict[str, int]:
    e = dict(d)
    e["b"] = 2
    return e


@program(args=lambda: ([("a", 1), ("b", 2)],))
def dict_of_pairs(ps: List[Tuple[str, int]]) -> Dict[str, int]:
    return dict(ps)


@program(args=lambda: (4,))
def dict_of_keywords(n: int) -> Dict[str, int]:
    return dict(a=n, b=n * 2)


@program(args=lambda: (torch.ones(2),))
def dict_of_lists_of_tensors(x: torch.Tensor) -> Dict[str, List[torch.Tensor]]:
    d: Dict[str, List[torch.Tensor]] = {"p": [x]}
    d["p"].append(x * 2)
    d["q"] = [t + 1 for t in d["p"]]
    return d


@program(args=lambda: ({0: torch.ones(2)},))
def dict_int_to_tensor(d: Dict[int, torch.Tensor]) -> torch.Tensor:
    for i in range(1, 4):
        d[i] = d[i - 1] * 2
    return d[3]


@program(args=lambda: ({"x": torch.ones(2)},))
def tensor_value_in_place(d: Dict[str, torch.Tensor]) -> torch.Tensor:
    d["x"] += 1
    d["x"].mul_(3)
    y = d["x"]
    y -= 1
    return d["x"]


@program(args=lambda: ({"a": {"b": 1}},))
def nested(d: Dict[str, Dict[str, int]]) -> int:
    d["a"]["c"] = 2
    d["z"] = {"y": 5}
    return d["a"]["b"] + d["a"]["c"] + d["z"]["y"]


@program(args=lambda: ({"a": 1},))
def augmented_value(d: Dict[str, int]) -> int:
    d["a"] += 5
    d["a"] *= 2
    return d["a"]


@program(args=lambda: ({"a": 1},))
def alias(d: Dict[str, int]) -> Dict[str, int]:
    e = d
    e["b"] = 2
    return d


def _fill(d: Dict[str, int], names: List[str]) -> None:
    for i, n in enumerate(names):
        d[n] = i


@program(args=lambda: ({"a": 1}, ["x", "y"]))
def helper_fills(d: Dict[str, int], names: List[str]) -> None:
    _fill(d, names)


@program(args=lambda: ({"a": 1}, {"a": 1}), torchscript=False)
def equality(d: Dict[str, int], e: Dict[str, int]) -> Tuple[bool, bool]:
    first = d == e
    e["b"] = 1
    return first, d == e


@program(calls=lambda: [({},), ({"a": 1},)])
def truth(d: Dict[str, int]) -> str:
    return "some" if d else "none"


@program(args=lambda: ({"a": 1},), raises=KeyError)
def missing_key(d: Dict[str, int]) -> int:
    return d["nope"]


@program(args=lambda: ({"a": (1, "x")},), torchscript=False)
def tuple_values(d: Dict[str, Tuple[int, str]]) -> str:
    n, s = d["a"]
    d["b"] = (n + 1, s * 2)
    return d["b"][1]


@program(args=lambda: (3,), torchscript=False)
def tuple_keys(n: int) -> Dict[Tuple[int, int], int]:
    d: Dict[Tuple[int, int], int] = {}
    for i in range(n):
        d[(i, i + 1)] = i
    d[0, 1] = 50
    return d


@program(args=lambda: (["b", "a", "b"],))
def counting_with_get(xs: List[str]) -> Dict[str, int]:
    d: Dict[str, int] = {}
    for x in xs:
        d[x] = d.get(x, 0) + 1
    return d


@program(args=lambda: ({"b": 2, "a": 1},))
def sorted_keys(d: Dict[str, int]) -> List[str]:
    return sorted(d.keys())


@program(args=lambda: ({"b": 2, "a": 1},), torchscript=False)
def sorted_items(d: Dict[str, int]) -> Tuple[List[str], List[Tuple[str, int]]]:
    return sorted(d), sorted(d.items())


@program(args=lambda: ({"b": 2}, {"c": 3}), torchscript=False)
def merged(d: Dict[str, int], e: Dict[str, int]) -> Tuple[Dict[str, int], Dict[str, int]]:
    f = d | e
    d |= {"z": 0}
    return f, {**d, **e, "k": 1}


@program(args=lambda: ({"a": torch.ones(2), "b": torch.zeros(3)},))
def concatenate_values(d: Dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat(list(d.values()))


@program(args=lambda: ({1: [2, 3], 2: [4], 3: [4], 4: []}, 1))
def breadth_first(graph: Dict[int, List[int]], start: int) -> List[int]:
    seen: Dict[int, bool] = {start: True}
    queue = [start]
    order: List[int] = []
    while len(queue) > 0:
        node = queue.pop(0)
        order.append(node)
        for other in graph[node]:
            if other not in seen:
                seen[other] = True
                queue.append(other)
    return order


@program(args=lambda: (12,))
def memo_table(n: int) -> int:
    memo: Dict[int, int] = {0: 0, 1: 1}
    for i in range(2, n + 1):
        memo[i] = memo[i - 1] + memo[i - 2]
    return memo[n]


@program(args=lambda: ({"a": None, "b": 3},))
def optional_values(d: Dict[str, Optional[int]]) -> int:
    total = 0
    for k, v in d.items():
        if v is not None:
            total += v
    d["c"] = None
    return total


@program(calls=lambda: [({"a": 1, "b": 2}, False), ({"a": 1}, True)], raises=RuntimeError,
         torchscript=False)  # fmt: skip
def grown_while_iterated(d: Dict[str, int], grow: bool) -> int:
    total = 0
    for k in d:
        total += d[k]
        if grow:
            d[k + k] = 0
    return total


@program(args=lambda: ({"a": 1, "b": 2},), raises=RuntimeError, torchscript=False)
def shrunk_while_iterated(d: Dict[str, int]) -> int:
    for k, v in d.items():
        if v == 1:
            d.pop(k)
    return len(d)


@program(args=lambda: ({"a": 1, "b": 2, "c": 3},))
def values_changed_while_iterated(d: Dict[str, int]) -> List[int]:
    seen: List[int] = []
    for k, v in d.items():
        seen.append(v)
        d["c"] = v * 10
    for i, v in enumerate(d.values()):
        seen.append(v)
        d["c"] = i
    return seen


@program(args=lambda: ({"a": 1, "b": 2, "c": 3},))
def changed_behind_a_list_of_keys(d: Dict[str, int]) -> Dict[str, int]:
    for k in list(d.keys()):
        if d[k] == 2:
            d.pop(k)
        else:
            d[k + "!"] = d[k]
    return d


@program(calls=lambda: [({"a": 1, "b": 2},), ({},)], torchscript=False)
def views_are_sets(d: Dict[str, int]):
    keys = d.keys()
    return (
        (
            keys == {"a", "b"},
            {"a"} <= keys,
            keys == d.keys(),
            keys != list(d),
            d.items() == d.items(),
        ),
        (keys - ["a"], keys & {"a", "q"}, {"z"} | keys, d.items() ^ {("a", 1)}),
        f"{keys} {str(d.values())}",
    )


@program(args=lambda: ({"a": 1},), torchscript=False)
def a_view_is_returned_and_printed(d: Dict[str, int]):
    print(d.values(), range(1, 3))
    return d.items()


@program(args=lambda: ({"a": 1},), refused=True)
def an_item_of_a_view(d: Dict[str, int]):
    return d.keys()[0]  # refused


@program(args=lambda: ({"a": 1},), refused=True)
def values_are_no_list(d: Dict[str, int]):
    return d.values() + [1]  # refused
