"""Functions with several results, some in one memory, whose predicted peak is compared with the
measured one: each has a cotangent, and the engine adds up where they meet."""

from __future__ import annotations

from tests.memory.case_table import case


@case()
def several_outputs(x):
    return x.sin(), x.cos(), x.exp()


@case()
def view_of_a_result(x):
    y = x * 2
    return y.view(-1, 100), y.t()


@case()
def result_and_views(x):
    y = x * 2
    return y, y.t(), y[5:]


@case()
def result_expanded(x):
    y = x * 2
    return y, y.unsqueeze(0).expand(3, -1, -1)


@case()
def argument_and_views(x):
    return x, x.view(-1, 100), x[:, ::2]


@case()
def argument_thrice(x):
    return x, x, x, x
