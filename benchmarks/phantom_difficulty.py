"""How hard is the phantom? Print what texture alone can tell, with and without knowledge of the lesion mask.

    python benchmarks/phantom_difficulty.py --seed 0 --patients 150
    python benchmarks/phantom_difficulty.py --cnn            (adds a small convolutional net on patches; a minute)

Rows: `oracle` reads the texture inside the lesion (a lesion-shaped area on the needle in benign cores), `patch` one square
patch per core centred in the lesion (in the region of a benign core), `patch, same core` inside against outside the lesion of
the cancer cores, `look-alike` cancer patches against the darkest patch of each benign core, `brightness` the mean grey level of
the patch alone, `whole core` the texture of the region without knowing where to look. Every AUROC is out of fold, folds by
patient.
"""

import argparse

import numpy as np
from scipy.ndimage import uniform_filter
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from grpo_pipeline.tasks.attention.data.phantom import shapes
from grpo_pipeline.tasks.attention.data.phantom.generate import PhantomCore, generate_cores
from grpo_pipeline.tasks.attention.data.phantom.params import PhantomParams

LAGS = ((0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (2, 0), (3, 0), (4, 0), (1, 1), (2, 2))


def texture(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Describe the texture inside a mask: moments of the grey levels and their correlation at short lags, float64 [14]."""
    grey = image.astype(float)
    values = grey[mask]
    centred, spread = grey - values.mean(), values.std() + 1e-6
    z = (values - values.mean()) / spread
    correlations = [correlation(centred, mask, lag) / spread**2 for lag in LAGS]
    return np.array([values.mean(), spread, (z**3).mean(), (z**4).mean(), *correlations])


def correlation(centred: np.ndarray, mask: np.ndarray, lag: tuple[int, int]) -> float:
    """Return the mean product of pixels that are one lag (down, right) apart, both inside the mask."""
    height, width = centred.shape
    down, right = lag
    first, second = (
        (slice(0, height - down), slice(0, width - right)),
        (slice(down, height), slice(right, width)),
    )
    both = mask[first] & mask[second]
    return float((centred[first] * centred[second])[both].mean())


def window(core: PhantomCore, pixel: int, side: int) -> np.ndarray:
    """Return True in the square of the given side around a pixel, shifted to stay inside the image."""
    size = core.image.shape[0]
    row, column = np.clip(np.array(divmod(pixel, size)) - side // 2, 0, size - side)
    mask = np.zeros_like(core.region)
    mask[row : row + side, column : column + side] = True
    return mask


def draw_window(
    rng: np.random.Generator, core: PhantomCore, where: np.ndarray, side: int
) -> np.ndarray:
    """Return a square centred on a random pixel of a mask."""
    return window(core, int(rng.choice(np.flatnonzero(where))), side)


def darkest_window(core: PhantomCore, side: int) -> np.ndarray:
    """Return the darkest square of a core whose centre lies in the region."""
    level = np.where(core.region, uniform_filter(core.image.astype(float), side), np.inf)
    return window(core, int(level.argmin()), side)


def stand_in(rng: np.random.Generator, core: PhantomCore, params: PhantomParams) -> np.ndarray:
    """Return a lesion-shaped area on the needle of a benign core."""
    grid = shapes.pixel_grid(params.image_size)
    trace = np.argwhere(core.needle)
    y, x = (trace.mean(axis=0) + 0.5) / params.image_size
    needle = shapes.Needle(float(x), float(y), 0.0, 0.3, 0.06)
    return shapes.draw_lesion(
        rng, core.region, needle, grid, share=rng.uniform(*params.lesion_share)
    )


def auroc(features: np.ndarray, label: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """Return the out-of-fold AUROC of a logistic regression and of a random forest."""
    models = (
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
        RandomForestClassifier(300, min_samples_leaf=3, random_state=0, n_jobs=1),
    )
    folds = GroupKFold(5)
    scores = [
        cross_val_predict(m, features, label, groups=groups, cv=folds, method="predict_proba")[:, 1]
        for m in models
    ]
    return roc_auc_score(label, scores[0]), roc_auc_score(label, scores[1])


def report(
    name: str,
    cores: list[PhantomCore],
    masks: list[np.ndarray],
    label: np.ndarray,
    *,
    columns: slice = slice(None),
) -> None:
    """Print one row of the table."""
    features = np.stack(
        [texture(core.image, mask) for core, mask in zip(cores, masks, strict=True)]
    )[:, columns]
    groups = np.array([core.row["patient_id"] for core in cores])
    logistic, forest = auroc(features, label, groups)
    print(
        f"{name:<18}{len(label):>7}{label.mean():>9.2f}{logistic:>11.3f}{forest:>9.3f}", flush=True
    )


def train_cnn(
    cores: list[PhantomCore], label: np.ndarray, *, side: int, seed: int, epochs: int
) -> tuple[float, float]:
    """Train a small convolutional net on patches drawn anew in each epoch.

    Returns:
        AUROC on a third of the patients: of one patch per core, and of the mean logit of eight patches (the oracle of a net).
    """
    import torch
    from torch import nn

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    rng = np.random.default_rng(seed)
    patients = sorted({core.row["patient_id"] for core in cores})
    held_out = set(rng.permutation(patients)[: len(patients) // 3])
    is_test = np.array([core.row["patient_id"] in held_out for core in cores])
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.GELU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.GELU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.GELU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-2)
    weight = torch.tensor(
        (1 - label[~is_test].mean()) / label[~is_test].mean(), dtype=torch.float32
    )

    def patches(which: np.ndarray) -> torch.Tensor:
        rows = [cores[i].image[draw_window(rng, cores[i], where(cores[i]), side)] for i in which]
        return torch.tensor(
            np.stack(rows).reshape(-1, 1, side, side) / 127.5 - 1, dtype=torch.float32
        )

    for _ in range(epochs):
        for batch in np.array_split(
            rng.permutation(np.flatnonzero(~is_test)), max(1, (~is_test).sum() // 32)
        ):
            target = torch.tensor(label[batch], dtype=torch.float32)
            loss = nn.functional.binary_cross_entropy_with_logits(
                net(patches(batch))[:, 0], target, pos_weight=weight
            )
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    net.eval()
    with torch.no_grad():
        logits = torch.stack(
            [net(patches(np.flatnonzero(is_test)))[:, 0] for _ in range(8)]
        ).numpy()
    one = float(np.mean([roc_auc_score(label[is_test], row) for row in logits]))
    return one, float(roc_auc_score(label[is_test], logits.mean(axis=0)))


def where(core: PhantomCore) -> np.ndarray:
    """Return where a patch of a core's own class may be centred."""
    return core.lesion if core.lesion.any() else core.region


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--patients", type=int, default=150)
    parser.add_argument("--patch", type=int, default=24, help="side of a patch in pixels")
    parser.add_argument(
        "--cnn", action="store_true", help="also train a small convolutional net on patches"
    )
    args = parser.parse_args()
    params = PhantomParams(seed=args.seed, patients=args.patients)
    rng = np.random.default_rng(args.seed)
    cores = list(generate_cores(params))
    label = np.array([int(core.lesion.any()) for core in cores])
    cancer = [core for core in cores if core.lesion.any()]
    print(
        f"seed {args.seed}: {len(cores)} cores, {args.patients} patients, {label.sum()} with cancer"
    )
    area = np.mean([core.lesion.sum() / core.region.sum() for core in cancer])
    involvement = np.median([core.row["involvement"] for core in cancer])
    faint = np.mean([core.conspicuity < 0.1 for core in cancer])
    print(
        f"lesion / region {area:.3f}, median involvement {involvement:.2f}, lesions of conspicuity below 0.1: {faint:.2f}"
    )
    print(f"{'':<18}{'n':>7}{'positive':>9}{'logistic':>11}{'forest':>9}")
    report(
        "oracle",
        cores,
        [c.lesion if c.lesion.any() else stand_in(rng, c, params) for c in cores],
        label,
    )
    patches = [draw_window(rng, c, where(c), args.patch) for c in cores]
    report("patch", cores, patches, label)
    outside = [draw_window(rng, c, c.region & ~c.lesion, args.patch) for c in cancer]
    inside = [draw_window(rng, c, c.lesion, args.patch) for c in cancer]
    report("patch, same core", cancer * 2, inside + outside, np.repeat([1, 0], len(cancer)))
    dark = [
        draw_window(rng, c, c.lesion, args.patch)
        if c.lesion.any()
        else darkest_window(c, args.patch)
        for c in cores
    ]
    report("look-alike", cores, dark, label)
    report("brightness", cores, patches, label, columns=slice(0, 1))
    report("whole core", cores, [c.region for c in cores], label)
    if args.cnn:
        one, eight = train_cnn(cores, label, side=args.patch, seed=args.seed, epochs=30)
        print(
            f"small net, held-out patients: {one:.3f} from one patch, {eight:.3f} from eight patches in the lesion"
        )


if __name__ == "__main__":
    main()
