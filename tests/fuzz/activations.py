"""How models apply activations; `{x}` stands for the operand.

PLAIN        functions and methods       "F.relu({x})"
IN_PLACE     those that write into x     "F.relu_({x})"
LAYERS       modules of torch.nn         "nn.ReLU()"
"""

from __future__ import annotations

PLAIN = (
    "F.relu({x})",
    "F.gelu({x})",
    "F.gelu({x}, approximate='tanh')",
    "F.silu({x})",
    "torch.sigmoid({x})",
    "{x}.tanh()",
    "F.elu({x})",
    "F.leaky_relu({x}, 0.2)",
    "F.softplus({x})",
    "F.mish({x})",
    "F.hardswish({x})",
    "F.hardsigmoid({x})",
    "F.selu({x})",
    "F.relu6({x})",
    "F.softmax({x}, dim=-1)",
    "F.log_softmax({x}, -1)",
    "{x} * torch.sigmoid(1.702 * {x})",
    "F.hardtanh({x}, -0.5, 0.5)",
    "F.logsigmoid({x})",
    "{x}.exp().clamp(max=50)",
    "{x}.abs()",
    "{x}.square()",
    "F.celu({x}, 0.5)",
    "F.tanhshrink({x})",
    "F.softsign({x})",
    "{x}.relu() ** 2",
    "torch.clamp({x}, -1, 1)",
    "F.threshold({x}, 0.1, 0.0)",
    "torch.sin({x}) * 0.5",
)
IN_PLACE = (
    "F.relu({x}, inplace=True)",
    "F.hardtanh({x}, -0.5, 0.5, inplace=True)",
    "{x}.relu_()",
    "F.silu({x}, inplace=True)",
    "F.leaky_relu({x}, 0.1, inplace=True)",
    "torch.relu_({x})",
    "F.elu({x}, inplace=True)",
    "F.mish({x}, inplace=True)",
    "F.hardswish({x}, inplace=True)",
    "F.relu6({x}, inplace=True)",
    "{x}.sigmoid_()",
    "{x}.tanh_()",
    "{x}.clamp_(-1, 1)",
    "F.dropout({x}, 0.3, True, True)",
    "F.threshold({x}, 0.1, 0.0, inplace=True)",
)
LAYERS = (
    "nn.ReLU()",
    "nn.ReLU(inplace=True)",
    "nn.GELU()",
    "nn.SiLU()",
    "nn.SiLU(inplace=True)",
    "nn.Tanh()",
    "nn.Hardtanh(-0.5, 0.5, inplace=True)",
    "nn.LeakyReLU(0.2, inplace=True)",
    "nn.ELU()",
    "nn.Hardswish(inplace=True)",
    "nn.PReLU()",
    "nn.Softplus()",
    "nn.Identity()",
    "nn.Mish()",
    "nn.ReLU6(inplace=True)",
    "nn.Dropout(0.2)",
    "nn.Sigmoid()",
    "nn.Softmax(dim=-1)",
)
