"""What the report of a pretrained encoder says about its agreement with UniFrac."""

from __future__ import annotations

from collections.abc import Mapping

# Mantel correlations closer than this are not told apart.
TIE = 0.02


def mantel_advice(metric: str, model: float, model_free: Mapping[str, float], learned_samples: int) -> str:
    """Return what the Mantel correlation of an encoder means beside distances that need no model, and what helps.

    Parameters
    ----------
    metric : str
        The distance that was learned, as the options name it.
    model : float
        Mantel correlation of the encoder's distances with it, on held-out samples.
    model_free : mapping of str to float
        The same correlation of distances that need no model, by their name in the report.
    learned_samples : int
        Samples that the encoder learned from.
    """
    name, best = max(model_free.items(), key=lambda pair: pair[1])
    numbers = f"Mantel {model:.2f} against {best:.2f}"
    if model > best + TIE:
        return f"The encoder's distances agree with {metric} better than {name}, which needs no model ({numbers})."
    if model >= best - TIE:
        return f"The encoder's distances agree with {metric} as well as {name}, which needs no model ({numbers})."
    return (
        f"The encoder's distances agree with {metric} less well than {name}, which needs no model ({numbers}): it has "
        "not learned these distances well. Use UniFrac itself for ordinations and nearest neighbours, and judge a "
        "model that is fine-tuned from this encoder by its held-out metrics beside the baselines. What helps most is "
        f"more samples of the same region, which need no labels (it learned from {learned_samples}), then more "
        "--epochs; a larger --embedding-dim helps only with many samples."
    )
