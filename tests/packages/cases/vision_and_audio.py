"""Packages of PyTorch's own people, timm, solvers: models and operators, scripted and traced."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.packages.support import Check, case, with_gradients


@case("torchvision", what="classifiers, a segmentation model, detection operators, transforms")
def torchvision(check: Check) -> None:
    from torchvision import models, ops, transforms
    from torchvision.transforms import functional as F

    image = torch.rand(1, 3, 64, 64)

    def scripted(name: str, **options: Any) -> Any:
        model = models.get_model(name, weights=None, num_classes=7, **options).eval()
        with torch.no_grad():
            return torch.jit.script(model)(image)

    def logits(found: Any) -> Any:
        return getattr(found, "logits", found)  # torch.jit's are named, Python's a tensor

    for name in ("resnet18", "mobilenet_v3_small", "squeezenet1_1", "shufflenet_v2_x0_5"):
        check(f"{name} scripted", lambda n=name: scripted(n))
    googlenet = {"init_weights": False, "aux_logits": False}
    check("googlenet scripted", lambda: logits(scripted("googlenet", **googlenet)))
    check("lraspp scripted", lambda: scripted("lraspp_mobilenet_v3_large", weights_backbone=None))

    def traced() -> Any:
        model = models.resnet18(weights=None, num_classes=5).eval()
        with torch.no_grad():
            return torch.jit.trace(model, image)(torch.rand(2, 3, 64, 64))

    check("resnet18 traced", traced)

    boxes = torch.tensor([[0.0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30]])
    scores = torch.tensor([0.9, 0.8, 0.7])

    def operators(boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kept = ops.nms(boxes, scores, 0.5)
        return kept, ops.box_iou(boxes, boxes), ops.box_area(boxes)

    check("nms and boxes", lambda: torch.jit.script(operators)(boxes, scores))
    check("box_convert", lambda: torch.jit.script(ops.box_convert)(boxes, "xyxy", "cxcywh"))
    check("giou", lambda: torch.jit.script(ops.generalized_box_iou)(boxes, boxes + 1))
    check(
        "focal loss",
        lambda: torch.jit.script(ops.sigmoid_focal_loss)(scores, torch.tensor([1.0, 0, 1]), 0.25),
    )
    check("roi_align", lambda: torch.jit.script(ops.RoIAlign(3, 1.0, 2))(image, [boxes]))

    pipeline = nn.Sequential(
        transforms.CenterCrop(40),
        transforms.Resize(32, antialias=True),
        transforms.Normalize([0.5, 0.4, 0.3], [0.2, 0.2, 0.2]),
    )
    check("transforms", lambda: torch.jit.script(pipeline)(image))
    check("grayscale", lambda: torch.jit.script(F.rgb_to_grayscale)(image))
    check("adjust_hue", lambda: torch.jit.script(F.adjust_hue)(image, 0.2))
    check("perspective", lambda: torch.jit.script(F.hflip)(image))


@case("torchaudio", what="functional and transforms, scripted; a Wav2Letter, scripted")
def torchaudio(check: Check) -> None:
    from torchaudio import functional as F
    from torchaudio import models, transforms

    wave = torch.sin(torch.arange(4000) * 0.05)[None]
    check(
        "amplitude_to_DB", lambda: torch.jit.script(F.amplitude_to_DB)(wave.abs(), 10.0, 1e-6, 0.0)
    )
    check("mu_law", lambda: torch.jit.script(F.mu_law_encoding)(wave, 256))
    check("resample", lambda: torch.jit.script(transforms.Resample(8000, 6000))(wave))
    check(
        "melscale_fbanks", lambda: torch.jit.script(F.melscale_fbanks)(101, 0.0, 4000.0, 20, 8000)
    )
    check("compute_deltas", lambda: torch.jit.script(F.compute_deltas)(torch.rand(1, 8, 30)))
    check("spectral_centroid", lambda: torch.jit.script(transforms.SpectralCentroid(8000))(wave))
    check("spectrogram", lambda: torch.jit.script(transforms.Spectrogram(128))(wave))
    check(
        "mel", lambda: torch.jit.script(transforms.MelSpectrogram(8000, n_fft=256, n_mels=16))(wave)
    )
    check(
        "mfcc", lambda: torch.jit.script(transforms.MFCC(8000, 8, melkwargs={"n_mels": 16}))(wave)
    )
    check(
        "masking", lambda: torch.jit.script(transforms.FrequencyMasking(3))(torch.rand(1, 16, 20))
    )
    check("fade", lambda: torch.jit.script(transforms.Fade(100, 100))(wave))
    check("wav2letter", lambda: torch.jit.script(models.Wav2Letter(8).eval())(wave[None]))
    check("conv tasnet", lambda: _conv_tasnet(models, wave))


def _conv_tasnet(models: Any, wave: Tensor) -> Any:
    options = {"enc_num_feats": 16, "msk_num_feats": 8, "msk_num_hidden_feats": 16}
    model = models.ConvTasNet(2, 16, msk_num_layers=2, msk_num_stacks=1, **options).eval()
    with torch.no_grad():
        return torch.jit.script(model)(wave[None])


@case("timm", what="classifiers of a dozen families, scripted in timm's script mode; layers")
def timm(check: Check) -> None:
    import timm as t
    from timm import layers

    names = (
        *("resnet10t", "vit_tiny_patch16_224", "mobilenetv3_small_050", "convnext_atto"),
        *("efficientnet_lite0", "mixer_s32_224", "regnetx_002", "pit_ti_224"),
    )

    def scripted(name: str) -> Any:
        options = {"num_classes": 5, "scriptable": True}
        size = 224 if "224" in name else 64
        model = t.create_model(name, **options).eval()
        with torch.no_grad():
            return torch.jit.script(model)(torch.rand(1, 3, size, size))

    for name in names:
        check(name, lambda n=name: scripted(n))
    x = torch.rand(2, 8, 6, 6)
    for name, layer in {
        "blur": lambda: layers.BlurPool2d(8),
        "eca": lambda: layers.EcaModule(8),
        "selective": lambda: layers.SelectiveKernel(8, 8),
        "squeeze and excite": lambda: layers.SEModule(8, rd_channels=4),
    }.items():
        check(name, lambda make=layer: with_gradients(torch.jit.script(make().eval()), x.clone()))


@case("torchsde", what="solvers with a drift and diffusion that torch.jit has scripted")
def torchsde(check: Check) -> None:
    import torchsde as sde

    class System(nn.Module):
        noise_type = "diagonal"
        sde_type = "ito"

        def __init__(self) -> None:
            super().__init__()
            self.drift = torch.jit.script(
                nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))
            )
            self.diffusion = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.Sigmoid()))

        def f(self, t: Tensor, y: Tensor) -> Tensor:
            return self.drift(y)

        def g(self, t: Tensor, y: Tensor) -> Tensor:
            return self.diffusion(y)

    def solved(method: str) -> Any:
        ts = torch.linspace(0, 1, 5)
        bm = sde.BrownianInterval(
            0.0, 1.0, size=(4, 3), entropy=3, levy_area_approximation="foster"
        )
        return sde.sdeint(System(), torch.ones(4, 3), ts, bm=bm, method=method, dt=0.1)

    for method in ("euler", "milstein", "srk"):
        check(method, lambda m=method: solved(m))


@case("torchdiffeq", what="odeint of scripted and traced right-hand sides, with gradients")
def torchdiffeq(check: Check) -> None:
    from torchdiffeq import odeint

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))

        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return self.net(y**3) * t.cos()

    def solved(compiled: Any) -> Any:
        y = torch.rand(5, 2, requires_grad=True)
        result = odeint(compiled, y, torch.linspace(0.0, 1.0, 4), method="dopri5")
        result.square().sum().backward()
        return [result, y.grad, [p.grad for p in compiled.parameters()]]

    check("scripted", lambda: solved(torch.jit.script(Net())))
    check("traced", lambda: solved(torch.jit.trace(Net(), (torch.tensor(0.5), torch.rand(5, 2)))))


@case(
    "speechbrain", what="layers for speech: features, normalisation, pooling, recurrent; scripted"
)
def speechbrain(check: Check) -> None:
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN, SEBlock, TDNNBlock
    from speechbrain.nnet.attention import ContentBasedAttention
    from speechbrain.nnet.linear import Linear
    from speechbrain.nnet.RNN import LiGRU

    x = torch.rand(2, 20, 16)
    check("linear", lambda: torch.jit.script(Linear(input_size=16, n_neurons=4))(x))
    check("tdnn", lambda: torch.jit.script(TDNNBlock(16, 8, 3, 1).eval())(x.transpose(1, 2)))
    check("se block", lambda: torch.jit.script(SEBlock(16, 4, 16).eval())(x.transpose(1, 2)))
    check("li-gru", lambda: torch.jit.script(LiGRU(6, (2, 20, 16)).eval())(x))

    def ecapa() -> Any:
        options = {"channels": [8, 8, 8, 8, 16], "attention_channels": 4, "lin_neurons": 6}
        model = ECAPA_TDNN(16, **options, res2net_scale=2, se_channels=4).eval()
        with torch.no_grad():
            return torch.jit.trace(model, x)(x + 0.1)

    check("ecapa-tdnn traced", ecapa)
    check(
        "attention",
        lambda: torch.jit.script(ContentBasedAttention(16, 8, 5, 6))(
            x, torch.tensor([1.0, 0.5]), torch.rand(2, 8)
        ),
    )
