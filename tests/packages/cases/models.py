"""Packages of whole models: language, vision, graphs, probability, training."""

# pyright: basic
from __future__ import annotations

import os
import tempfile
from typing import Any

import torch

from tests.packages.support import Check, case, trained, with_gradients


@case("transformers", what="BERT, GPT-2, T5, DistilBERT, ViT, RoBERTa, Llama: tiny, random, traced")
def transformers(check: Check) -> None:
    import transformers as hf

    tiny = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 50,
    }
    ids = torch.arange(12).reshape(2, 6) % 50
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])

    def traced(model: Any, *example: Any, other: tuple[Any, ...] = ()) -> Any:
        model.config.return_dict = False
        module = torch.jit.trace(model.eval(), example)
        return [module(*example), module(*(other or example))]

    class Logits(torch.nn.Module):
        """Models with a head need a result of named fields inside."""

        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.model(ids).logits

    def traced_logits(model: Any) -> Any:
        return torch.jit.trace(Logits(model).eval(), ids)(ids)

    def bert(cls: Any = hf.BertModel) -> Any:
        return cls(hf.BertConfig(**tiny, attn_implementation="eager"))

    check("BERT traced", lambda: traced(bert(), ids, mask))
    check("BERT with sdpa traced", lambda: traced(hf.BertModel(hf.BertConfig(**tiny)), ids, mask))
    check(
        "BERT for classes, gradients",
        lambda: with_gradients(
            torch.jit.trace(_plain(bert(hf.BertForSequenceClassification)), (ids, mask)), ids, mask
        ),
    )
    check("RoBERTa traced", lambda: traced(hf.RobertaModel(hf.RobertaConfig(**tiny)), ids, mask))
    check(
        "DistilBERT traced",
        lambda: traced(
            hf.DistilBertModel(
                hf.DistilBertConfig(vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32)
            ),
            ids,
            mask,
        ),
    )
    check(
        "GPT-2 traced",
        lambda: traced_logits(
            hf.GPT2LMHeadModel(
                hf.GPT2Config(
                    vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32, use_cache=False
                )
            )
        ),
    )
    check(
        "T5 encoder traced",
        lambda: traced(
            hf.T5EncoderModel(
                hf.T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
            ),
            ids,
            mask,
        ),
    )
    check(
        "ViT traced",
        lambda: traced(
            hf.ViTModel(
                hf.ViTConfig(
                    hidden_size=16,
                    num_hidden_layers=2,
                    num_attention_heads=2,
                    intermediate_size=32,
                    image_size=16,
                    patch_size=4,
                )
            ),
            torch.rand(2, 3, 16, 16),
        ),
    )
    check(
        "Llama traced",
        lambda: traced_logits(
            hf.LlamaForCausalLM(hf.LlamaConfig(**tiny, num_key_value_heads=2, use_cache=False))
        ),
    )
    check(
        "activations scripted",
        lambda: [
            torch.jit.script(hf.activations.ACT2FN[name])(torch.randn(5))
            for name in ("gelu_new", "quick_gelu", "relu2")
        ],
    )
    check(
        "T5 layer norm scripted",
        lambda: with_gradients(
            torch.jit.script(hf.models.t5.modeling_t5.T5LayerNorm(8)), torch.randn(3, 8)
        ),
    )


def _plain(model: Any) -> Any:
    model.config.return_dict = False
    return model.eval()


@case("diffusers", what="attention, ResNet and UNet blocks traced; what Kolors scripts")
def diffusers(check: Check) -> None:
    from diffusers import UNet2DModel
    from diffusers.models.attention import BasicTransformerBlock
    from diffusers.models.resnet import ResnetBlock2D

    def unet() -> Any:
        return UNet2DModel(
            sample_size=8,
            in_channels=1,
            out_channels=1,
            layers_per_block=1,
            norm_num_groups=4,
            block_out_channels=(8, 8),
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            attention_head_dim=4,
        ).eval()

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unet = unet()

        def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
            return self.unet(x, time, return_dict=False)[0]

    x, time = torch.randn(2, 1, 8, 8), torch.tensor([3, 7])
    check("UNet2DModel traced", lambda: torch.jit.trace(Step(), (x, time))(x + 1, time))
    check(
        "ResnetBlock2D traced",
        lambda: with_gradients(
            torch.jit.trace(
                ResnetBlock2D(in_channels=8, temb_channels=4, groups=4),
                (torch.rand(1, 8, 4, 4), torch.rand(1, 4)),
            ),
            torch.rand(2, 8, 6, 6),
            torch.rand(2, 4),
        ),
    )
    check(
        "BasicTransformerBlock traced",
        lambda: torch.jit.trace(BasicTransformerBlock(8, 2, 4).eval(), torch.rand(2, 5, 8))(
            torch.rand(2, 5, 8)
        ),
    )

    def rotary() -> Any:
        from diffusers.pipelines.kolors.text_encoder import apply_rotary_pos_emb

        return with_gradients(
            apply_rotary_pos_emb, torch.rand(5, 2, 3, 8), torch.rand(6, 1, 2, 2), parameters=[]
        )

    check("Kolors apply_rotary_pos_emb", rotary)


@case("torch-geometric", what="convolutions, pooling and utilities scripted, gradients")
def torch_geometric(check: Check) -> None:
    from torch_geometric import nn, utils

    x, edges = torch.randn(4, 8), torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
    makers = {
        "GCNConv": lambda: nn.GCNConv(8, 4),
        "SAGEConv": lambda: nn.SAGEConv(8, 4),
        "GATConv": lambda: nn.GATConv(8, 4, heads=2),
        "GINConv": lambda: nn.GINConv(torch.nn.Linear(8, 4)),
        "GraphConv": lambda: nn.GraphConv(8, 4),
        "ChebConv": lambda: nn.ChebConv(8, 4, K=2),
        "GATv2Conv": lambda: nn.GATv2Conv(8, 4),
        "TransformerConv": lambda: nn.TransformerConv(8, 4),
    }
    for name, make in makers.items():
        check(
            f"{name} scripted",
            lambda make=make: with_gradients(torch.jit.script(make()), x.clone(), edges),
        )
    check(
        "GCN model scripted",
        lambda: trained(
            torch.jit.script(nn.GCN(8, 8, num_layers=2, out_channels=3)), [(x, edges)] * 3
        ),
    )
    check(
        "BatchNorm scripted", lambda: with_gradients(torch.jit.script(nn.BatchNorm(8)), x.clone())
    )
    check(
        "GraphNorm scripted", lambda: with_gradients(torch.jit.script(nn.GraphNorm(8)), x.clone())
    )
    check("LayerNorm scripted", lambda: torch.jit.script(nn.LayerNorm(8))(x))
    check("softmax scripted", lambda: torch.jit.script(utils.softmax)(x, edges[0, :4]))
    check("degree scripted", lambda: torch.jit.script(utils.degree)(edges[0], 5))
    check(
        "scatter scripted", lambda: torch.jit.script(utils.scatter)(x, edges[0, :4], 0, 4, "mean")
    )
    check("add_self_loops scripted", lambda: torch.jit.script(utils.add_self_loops)(edges))
    check("remove_self_loops scripted", lambda: torch.jit.script(utils.remove_self_loops)(edges))
    check(
        "global_mean_pool scripted",
        lambda: torch.jit.script(nn.global_mean_pool)(x, torch.tensor([0, 0, 1, 1])),
    )
    check("TopKPooling scripted", lambda: torch.jit.script(nn.TopKPooling(8))(x, edges)[:2])
    check("GCNConv traced", lambda: torch.jit.trace(nn.GCNConv(8, 4), (x, edges))(x + 1, edges))


@case(
    "monai", what="UNet, BasicUNet, DenseNet, SegResNet, ViT: scripted, as its own tests do; losses"
)
def monai(check: Check) -> None:
    from monai.losses import DiceLoss
    from monai.networks import nets

    def unet() -> Any:
        return nets.UNet(2, 1, 2, channels=(4, 8, 8), strides=(2, 2), num_res_units=1)

    image = torch.rand(2, 1, 16, 16)
    check("UNet scripted", lambda: with_gradients(torch.jit.script(unet().eval()), image.clone()))
    check("UNet traced", lambda: torch.jit.trace(unet().eval(), image)(torch.rand(1, 1, 32, 32)))
    check(
        "BasicUNet scripted",
        lambda: torch.jit.script(nets.BasicUNet(2, 1, 2, features=(4, 4, 4, 4, 4, 4)).eval())(
            torch.rand(1, 1, 32, 32)
        ),
    )
    check(
        "DenseNet scripted",
        lambda: torch.jit.script(
            nets.DenseNet(2, 1, 3, init_features=4, growth_rate=2, block_config=(2, 2)).eval()
        )(image),
    )
    check(
        "SegResNet scripted",
        lambda: torch.jit.script(
            nets.SegResNet(2, init_filters=4, in_channels=1, num_groups=2).eval()
        )(image),
    )
    check(
        "ViT scripted",
        lambda: torch.jit.script(
            nets.ViT(
                1,
                (16, 16),
                (8, 8),
                hidden_size=12,
                mlp_dim=16,
                num_layers=1,
                num_heads=2,
                spatial_dims=2,
                proj_type="conv",
            ).eval()
        )(image)[0],
    )
    check(
        "HighResNet scripted",
        lambda: torch.jit.script(
            nets.HighResNet(
                2,
                1,
                2,
                layer_params=(
                    {"name": "conv_0", "n_features": 4, "kernel_size": 3},
                    {"name": "res_1", "n_features": 4, "kernels": (3, 3), "repeat": 1},
                    {"name": "conv_1", "n_features": 4, "kernel_size": 1},
                    {"name": "conv_2", "kernel_size": 1},
                ),
            ).eval()
        )(image),
    )
    check("training", lambda: trained(torch.jit.script(unet()), [(image,)] * 2))
    check(
        "DiceLoss scripted",
        lambda: torch.jit.script(DiceLoss(sigmoid=True))(
            torch.rand(2, 1, 4, 4), torch.ones(2, 1, 4, 4)
        ),
    )


@case("kornia", what="colour, filters, geometry, losses, features: scripted as its users do")
def kornia(check: Check) -> None:
    import kornia as K

    image, gray = torch.rand(2, 3, 12, 12), torch.rand(2, 1, 12, 12)
    functions = {
        "rgb_to_hsv": (K.color.rgb_to_hsv, image),
        "rgb_to_lab": (K.color.rgb_to_lab, image),
        "rgb_to_grayscale": (K.color.rgb_to_grayscale, image),
        "rgb_to_ycbcr": (K.color.rgb_to_ycbcr, image),
        "sobel": (K.filters.sobel, gray),
        "box_blur": (K.filters.box_blur, image, (3, 3)),
        "laplacian": (K.filters.laplacian, image, 3),
        "median_blur": (K.filters.median_blur, image, (3, 3)),
        "gaussian_blur2d": (K.filters.gaussian_blur2d, image, (3, 3), (1.5, 1.5)),
        "spatial_gradient": (K.filters.spatial_gradient, gray),
        "adjust_gamma": (K.enhance.adjust_gamma, image, 0.7),
        "normalize": (K.enhance.normalize, image, torch.rand(3), torch.rand(3) + 1),
        "angle_axis_to_rotation_matrix": (
            K.geometry.axis_angle_to_rotation_matrix,
            torch.rand(3, 3),
        ),
        "quaternion_to_rotation_matrix": (
            K.geometry.quaternion_to_rotation_matrix,
            torch.rand(3, 4),
        ),
        "warp_perspective": (
            K.geometry.warp_perspective,
            image,
            torch.eye(3).expand(2, 3, 3),
            (8, 8),
        ),
        "warp_affine": (
            K.geometry.warp_affine,
            image,
            torch.eye(3)[None, :2].expand(2, 2, 3),
            (8, 8),
        ),
        "transform_points": (K.geometry.transform_points, torch.eye(3)[None], torch.rand(1, 5, 2)),
        "ssim": (K.metrics.ssim, image, image.flip(0), 5),
        "total_variation": (K.losses.total_variation, image),
        "dilation": (K.morphology.dilation, image, torch.ones(3, 3)),
        "harris_response": (K.feature.harris_response, gray),
    }
    for name, (fn, *args) in functions.items():
        check(f"{name} scripted", lambda fn=fn, args=args: torch.jit.script(fn)(*args))
    check("canny traced", lambda: torch.jit.trace(K.filters.canny, gray)(gray.flip(0))[1])
    patches = torch.rand(2, 1, 32, 32)
    for cls in (K.feature.HardNet, K.feature.SOSNet, K.feature.TFeat):
        check(
            f"{cls.__name__} scripted",
            lambda cls=cls: with_gradients(torch.jit.script(cls(False).eval()), patches.clone()),
        )
    check(
        "SIFTDescriptor scripted", lambda: torch.jit.script(K.feature.SIFTDescriptor(32))(patches)
    )
    check(
        "MKDDescriptor scripted",
        lambda: torch.jit.script(K.feature.MKDDescriptor(32, whitening=None))(patches),
    )
    check(
        "FocalLoss scripted",
        lambda: torch.jit.script(K.losses.FocalLoss(0.5))(
            torch.rand(2, 3, 4, 4), torch.randint(3, (2, 4, 4))
        ),
    )


@case("gpytorch", what="an exact GP trained; predictions traced with settings.trace_mode")
def gpytorch(check: Check) -> None:
    import gpytorch as gp

    class Model(gp.models.ExactGP):
        def __init__(self, x: Any, y: Any, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gp.means.ConstantMean()
            self.kernel = gp.kernels.ScaleKernel(gp.kernels.RBFKernel())

        def forward(self, x: Any) -> Any:
            return gp.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    x = torch.linspace(0, 1, 20)
    y = torch.sin(x * 6)

    def fit() -> Any:
        likelihood = gp.likelihoods.GaussianLikelihood()
        model = Model(x, y, likelihood)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        objective = gp.mlls.ExactMarginalLogLikelihood(likelihood, model)
        losses: list[float] = []
        with (
            gp.settings.max_cholesky_size(0),
            gp.settings.cg_tolerance(1e-4),
            gp.settings.deterministic_probes(True),
        ):
            for _ in range(3):
                optimizer.zero_grad()
                loss = -objective(model(x), y)
                loss.backward()
                optimizer.step()
                losses.append(float(loss))
        return model, losses

    def traced() -> Any:
        model, _ = fit()
        model.eval()

        class Mean(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.gp = model

            def forward(self, x: torch.Tensor) -> Any:
                found = self.gp(x)
                return found.mean, found.variance

        with torch.no_grad(), gp.settings.fast_pred_var(), gp.settings.trace_mode():
            points = torch.linspace(0, 1, 7)
            model(points)
            made = torch.jit.trace(Mean(), points, check_trace=False)
            return made(points + 0.01)

    check("training by conjugate gradients", lambda: fit()[1])
    check("predictions traced", traced)


@case("linear-operator", what="conjugate gradients, whose updates it scripts")
def linear_operator(check: Check) -> None:
    from linear_operator import to_linear_operator
    from linear_operator.utils.linear_cg import linear_cg

    square = torch.randn(6, 6)
    matrix = square @ square.T + 6 * torch.eye(6)
    right = torch.randn(6, 2)
    check("linear_cg", lambda: linear_cg(matrix.matmul, right, n_tridiag=0, max_iter=10))
    check(
        "with tridiagonal",
        lambda: linear_cg(matrix.matmul, right, n_tridiag=2, max_iter=6, max_tridiag_iter=6),
    )
    check("solve", lambda: to_linear_operator(matrix).solve(right))


@case("pyro-ppl", module="pyro", what="SVI with JitTrace_ELBO, HMC with jit_compile")
def pyro(check: Check) -> None:
    import pyro
    import pyro.distributions as dist
    from pyro.infer import HMC, MCMC, SVI, JitTrace_ELBO, JitTraceMeanField_ELBO, Trace_ELBO

    eager = os.environ.get("PYTORCH_JIT") == "0"
    data = torch.tensor([1.0, 2.0, 0.5, 1.5])

    def model(data: Any) -> None:
        loc = pyro.sample("loc", dist.Normal(0.0, 10.0))
        with pyro.plate("data", len(data)):
            pyro.sample("obs", dist.Normal(loc, 1.0), obs=data)

    def guide(data: Any) -> None:
        mean = pyro.param("mean", torch.tensor(0.0))
        scale = pyro.param("scale", torch.tensor(1.0), constraint=dist.constraints.positive)
        pyro.sample("loc", dist.Normal(mean, scale))

    def svi(cls: Any) -> Any:
        pyro.clear_param_store()
        pyro.set_rng_seed(1)
        loss = (Trace_ELBO if eager else cls)(ignore_jit_warnings=True)
        made = SVI(model, guide, pyro.optim.Adam({"lr": 0.05}), loss)
        losses = [made.step(data) for _ in range(5)]
        return [len(losses), pyro.param("mean").item() != 0, all(x == x for x in losses)]

    def hmc() -> Any:
        pyro.set_rng_seed(2)
        kernel = HMC(
            model, step_size=0.1, num_steps=3, jit_compile=not eager, ignore_jit_warnings=True
        )
        run = MCMC(kernel, num_samples=5, warmup_steps=2, disable_progbar=True)
        run.run(data)
        return run.get_samples()["loc"].shape[0]

    check("SVI, JitTrace_ELBO", lambda: svi(JitTrace_ELBO))
    check("SVI, JitTraceMeanField_ELBO", lambda: svi(JitTraceMeanField_ELBO))
    check("HMC", hmc)


@case("pytorch-lightning", what="LightningModule.to_torchscript, by script and by trace")
def pytorch_lightning(check: Check) -> None:
    import pytorch_lightning as pl

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(4, 3)
            self.example_input_array = torch.rand(2, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.fc(x))

        def training_step(self, batch: Any, index: int) -> Any:
            return self(batch).sum()

    check("script", lambda: Net().to_torchscript()(torch.rand(5, 4)))
    check("trace", lambda: Net().to_torchscript(method="trace")(torch.rand(5, 4)))
    check("torch.jit.script", lambda: torch.jit.script(Net())(torch.rand(5, 4)))


@case(
    "rwkv", what="RWKV-4, a ScriptModule of script methods, with random weights: one token and many"
)
def rwkv(check: Check) -> None:
    os.environ["RWKV_JIT_ON"] = "0" if os.environ.get("PYTORCH_JIT") == "0" else "1"
    os.environ["RWKV_CUDA_ON"] = "0"
    from rwkv.model import RWKV

    n, layers, tokens = 16, 2, 20

    def weights() -> dict[str, torch.Tensor]:
        torch.manual_seed(1)
        made = {
            "emb.weight": torch.randn(tokens, n) * 0.3,
            "head.weight": torch.randn(tokens, n) * 0.3,
        }
        for name in ("ln_out", "blocks.0.ln0"):
            made |= {f"{name}.weight": torch.ones(n), f"{name}.bias": torch.zeros(n)}
        for k in range(layers):
            block = f"blocks.{k}"
            for ln in ("ln1", "ln2"):
                made |= {
                    f"{block}.{ln}.weight": torch.ones(n),
                    f"{block}.{ln}.bias": torch.zeros(n),
                }
            att, ffn = f"{block}.att", f"{block}.ffn"
            made |= {f"{att}.time_decay": torch.rand(n), f"{att}.time_first": torch.rand(n)}
            made |= {f"{att}.time_mix_{x}": torch.rand(1, 1, n) for x in "kvr"}
            made |= {f"{ffn}.time_mix_{x}": torch.rand(1, 1, n) for x in "kr"}
            names = ("key", "value", "receptance", "output")
            made |= {f"{att}.{x}.weight": torch.randn(n, n) * 0.2 for x in names}
            made |= {
                f"{ffn}.key.weight": torch.randn(32, n) * 0.2,
                f"{ffn}.value.weight": torch.randn(n, 32) * 0.2,
                f"{ffn}.receptance.weight": torch.randn(n, n) * 0.2,
            }
        return made

    def run() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "tiny")
            torch.save(weights(), path + ".pth")
            model = RWKV(model=path, strategy="cpu fp32", verbose=False)
        first, state = model.forward([3, 1, 4], None)
        second, state = model.forward([5], state)
        return [first, second, state]

    check("forward", run)
