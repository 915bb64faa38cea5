"""Packages of chemistry, physics and signal processing."""

# pyright: basic
from __future__ import annotations

from typing import Any

import torch

from tests.packages.support import Check, case, trained, with_gradients


@case("e3nn", what="tensor products, gates and harmonics, which it scripts itself; e3nn.util.jit")
def e3nn(check: Check) -> None:
    from e3nn import o3
    from e3nn.nn import BatchNorm, FullyConnectedNet, Gate, NormActivation
    from e3nn.util import jit

    def product() -> Any:
        return o3.FullyConnectedTensorProduct("4x0e+2x1o", "0e+1o", "3x0e+2x1o")

    x, y = torch.randn(5, 10), torch.randn(5, 4)
    # Drawn before anything is compiled: e3nn draws inputs of its own for that.
    gated, other = torch.randn(5, 12), (torch.randn(3, 10), torch.randn(3, 4))
    check("Linear", lambda: with_gradients(o3.Linear("4x0e+2x1o", "2x0e+3x1o"), x))
    check("FullyConnectedTensorProduct", lambda: with_gradients(product(), x, y))
    check(
        "SphericalHarmonics",
        lambda: with_gradients(
            o3.SphericalHarmonics([0, 1, 2, 3], True, "component"), torch.randn(7, 3)
        ),
    )
    check("script(tensor product)", lambda: with_gradients(jit.script(product()), x, y))
    check("script(Linear)", lambda: with_gradients(jit.script(o3.Linear("4x0e+2x1o", "1o")), x))
    check(
        "script(SphericalHarmonics)",
        lambda: jit.script(o3.SphericalHarmonics([0, 1, 2], False, "norm"))(torch.randn(7, 3)),
    )
    check(
        "script(FullyConnectedNet)",
        lambda: with_gradients(
            jit.script(FullyConnectedNet([4, 8, 3], torch.nn.functional.silu)), torch.randn(5, 4)
        ),
    )
    check(
        "Gate",
        lambda: with_gradients(Gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o"), gated),
    )
    check(
        "script(Gate)",
        lambda: with_gradients(
            jit.script(Gate("4x0e", [torch.tanh], "2x0e", [torch.sigmoid], "2x1o")),
            gated,
        ),
    )
    check(
        "script(NormActivation)",
        lambda: jit.script(NormActivation(o3.Irreps("4x0e+2x1o"), torch.sigmoid, bias=True))(x),
    )
    check("script(BatchNorm)", lambda: with_gradients(jit.script(BatchNorm("4x0e+2x1o")), x))
    check(
        "trace(tensor product)",
        lambda: jit.trace(product(), (x.detach(), y.detach()))(*other),
    )
    check("training", lambda: trained(product(), [(x.detach(), y.detach())] * 3))
    check("wigner_D", lambda: o3.wigner_D(2, *torch.rand(3, 4)))


@case("opt-einsum-fx", what="einsums made efficient by torch.fx, then scripted")
def opt_einsum_fx(check: Check) -> None:
    from opt_einsum_fx import EfficientShapeProp, fuse_scalars, jitable, optimize_einsums_full

    def einmatvec(a: Any, b: Any, vec: Any) -> Any:
        return torch.einsum("zij,zjk,zk->zi", a, b, vec) * 2.0 * 3.0

    args = (torch.randn(4, 5, 6), torch.randn(4, 6, 3), torch.randn(4, 3))

    def optimized(scripted: bool) -> Any:
        graph = torch.fx.symbolic_trace(einmatvec)
        made = jitable(optimize_einsums_full(graph, args))
        return with_gradients(torch.jit.script(made) if scripted else made, *args)

    def fused() -> Any:
        graph = torch.fx.symbolic_trace(einmatvec)
        module = torch.fx.GraphModule(
            graph.root if hasattr(graph, "root") else {}, fuse_scalars(graph.graph)
        )
        EfficientShapeProp(module).propagate(*args)
        return torch.jit.script(module)(*args)

    check("optimized, scripted", lambda: optimized(True))
    check("optimized", lambda: optimized(False))
    check("fused scalars, scripted", fused)


@case(
    "torchkbnufft", what="NUFFT, its adjoint and gradients: scripted with fork and wait throughout"
)
def torchkbnufft(check: Check) -> None:
    import torchkbnufft as tkbn

    image = torch.randn(1, 1, 8, 8, dtype=torch.complex64)
    points = (torch.rand(2, 20) - 0.5) * 6
    data = torch.randn(1, 1, 20, dtype=torch.complex64)
    check("forward", lambda: tkbn.KbNufft(im_size=(8, 8))(image, points))
    check("adjoint", lambda: tkbn.KbNufftAdjoint(im_size=(8, 8))(data, points))
    check("1-d forward", lambda: tkbn.KbNufft(im_size=(8,))(image[..., 0], points[:1]))
    check(
        "batched trajectory",
        lambda: tkbn.KbNufft(im_size=(8, 8))(image.expand(3, 1, 8, 8), torch.stack([points] * 3)),
    )
    check(
        "sparse matrices",
        lambda: tkbn.KbNufft(im_size=(8, 8))(
            image, points, tkbn.calc_tensor_spmatrix(points, im_size=(8, 8))
        ),
    )
    check(
        "toeplitz kernel",
        lambda: tkbn.ToepNufft()(image, tkbn.calc_toeplitz_kernel(points, im_size=(8, 8))),
    )
    check("density", lambda: tkbn.calc_density_compensation_function(points, im_size=(8, 8)))

    def gradient() -> Any:
        x = image.clone().requires_grad_()
        y = tkbn.KbNufft(im_size=(8, 8))(x, points)
        y.abs().square().sum().backward()
        return [y, x.grad]

    check("gradient", gradient)
    check(
        "interp scripted",
        lambda: torch.jit.script(tkbn.KbInterp(im_size=(8, 8), grid_size=(8, 8)))(image, points),
    )


@case("torchani", what="atomic environments and potentials with random weights: scripted, forces")
def torchani(check: Check) -> None:
    from torchani.aev import AEVComputer
    from torchani.nn import ANINetworks, AtomicNetwork, SpeciesConverter

    symbols = ["H", "C"]

    class Potential(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.converter = SpeciesConverter(symbols)
            self.aev = aev()
            width = self.aev.out_dim
            self.networks = ANINetworks({s: AtomicNetwork((width, 8, 1)) for s in symbols})

        def forward(self, numbers: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            species = self.converter(numbers)
            return self.networks(species, self.aev(species, x, None, None))

    def aev() -> Any:
        sizes = {"radial_num_shifts": 4, "angular_num_shifts": 2, "angular_num_sections": 4}
        return AEVComputer.like_1x(num_species=2, **sizes)

    numbers = torch.tensor([[1, 6, 6, 1], [1, 6, 1, -1]])
    species = torch.tensor([[0, 1, 1, 0], [0, 1, 0, -1]])
    places = torch.rand(2, 4, 3) * 3
    cell, pbc = torch.eye(3) * 12, torch.tensor([True, True, True])

    def forces(module: Any) -> Any:
        x = places.clone().requires_grad_()
        energy = module(numbers, x)
        (force,) = torch.autograd.grad(energy.sum(), x)
        return [energy, force]

    check("AEVComputer scripted", lambda: torch.jit.script(aev())(species, places))
    check("AEVComputer, periodic", lambda: torch.jit.script(aev())(species, places, cell, pbc))
    check("energies and forces, scripted", lambda: forces(torch.jit.script(Potential())))
    check("energies and forces", lambda: forces(Potential()))
    check("SpeciesConverter scripted", lambda: torch.jit.script(SpeciesConverter(symbols))(numbers))


@case(
    "schnetpack",
    what="its scripted scatter_add (the package itself does not import on this PyTorch)",
)
def schnetpack(check: Check) -> None:
    import importlib.util

    folder = importlib.util.find_spec("schnetpack").submodule_search_locations[0]  # type: ignore
    spec = importlib.util.spec_from_file_location("schnetpack_scatter", f"{folder}/nn/scatter.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    index = torch.tensor([0, 1, 1, 3])
    check(
        "scatter_add",
        lambda: with_gradients(
            lambda x: module.scatter_add(x, index, 5), torch.rand(4, 3), parameters=[]
        ),
    )
    check("along dim 1", lambda: module.scatter_add(torch.rand(3, 4), index, dim_size=6, dim=1))


@case(
    "asteroid-filterbanks",
    what="filterbanks and STFT, scripted and traced with their script_if_tracing",
)
def asteroid_filterbanks(check: Check) -> None:
    import asteroid_filterbanks as fb
    from asteroid_filterbanks import transforms

    def bank() -> Any:
        return fb.FreeFB(16, 8, stride=4)

    wave = torch.randn(2, 1, 40)
    check(
        "Encoder traced", lambda: torch.jit.trace(fb.Encoder(bank()), wave)(torch.randn(1, 1, 48))
    )
    check("Encoder, 2-d input", lambda: torch.jit.trace(fb.Encoder(bank()), wave)(wave[:, 0]))
    check(
        "Decoder traced",
        lambda: torch.jit.trace(fb.Decoder(bank()), torch.randn(2, 16, 9))(torch.randn(1, 16, 9)),
    )
    check(
        "STFT there and back",
        lambda: fb.Decoder(fb.STFTFB(16, 8))(fb.Encoder(fb.STFTFB(16, 8))(wave)),
    )
    check(
        "mag scripted",
        lambda: with_gradients(
            torch.jit.script(transforms.mag), torch.randn(2, 6, 5), parameters=[]
        ),
    )
    check(
        "magphase traced",
        lambda: torch.jit.trace(transforms.magphase, torch.randn(2, 6, 5))(torch.randn(3, 6, 4)),
    )
    check("Encoder scripted", lambda: torch.jit.script(fb.Encoder(bank()))(wave))


@case("asteroid", what="ConvTasNet and DPRNN blocks, scripted and traced")
def asteroid(check: Check) -> None:
    from asteroid.masknn import TDConvNet
    from asteroid.masknn.recurrent import DPRNN, SingleRNN

    x = torch.randn(2, 8, 20)

    def conv() -> Any:
        return TDConvNet(8, 2, n_blocks=2, n_repeats=1, bn_chan=8, hid_chan=8, skip_chan=8)

    def dual() -> Any:
        return DPRNN(8, 2, bn_chan=8, hid_size=8, chunk_size=10, hop_size=5, n_repeats=1)

    check("TDConvNet traced", lambda: with_gradients(torch.jit.trace(conv(), x), x.clone()))
    check("TDConvNet scripted", lambda: with_gradients(torch.jit.script(conv()), x.clone()))
    check("DPRNN traced", lambda: torch.jit.trace(dual().eval(), x)(x))
    check("DPRNN scripted", lambda: torch.jit.script(dual().eval())(x))
    check(
        "SingleRNN scripted",
        lambda: torch.jit.script(SingleRNN("LSTM", 8, 8))(torch.randn(2, 5, 8)),
    )


@case("nequip", what="parts of an interatomic potential in e3nn's script mode")
def nequip(check: Check) -> None:
    from e3nn.util.jit import script
    from nequip.nn import AtomwiseReduce, ScalarMLPFunction
    from nequip.nn.utils import scatter

    def mlp() -> Any:
        return ScalarMLPFunction(
            4, 2, hidden_layers_depth=2, hidden_layers_width=8, nonlinearity="silu", bias=False
        )

    check("ScalarMLPFunction scripted", lambda: with_gradients(script(mlp()), torch.randn(5, 4)))
    check(
        "scatter scripted",
        lambda: torch.jit.script(scatter)(torch.rand(4, 3), torch.tensor([0, 1, 1, 2]), 0, 3),
    )
    reduce = AtomwiseReduce(
        field="atomic_energy", out_field="total_energy", irreps_in={"atomic_energy": "1x0e"}
    )
    data = {
        "atomic_energy": torch.rand(5, 1),
        "batch": torch.tensor([0, 0, 1, 1, 1]),
        "num_nodes": torch.tensor([2, 3]),
        "pos": torch.rand(5, 3),
    }
    check("AtomwiseReduce scripted", lambda: script(reduce)(data)["total_energy"])
