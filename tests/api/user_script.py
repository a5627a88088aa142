"""A script as users write it. mypy checks it with the package, so that each public name keeps its
types; lines that must be errors say so.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

import aam


def main(folder: Path) -> None:
    """Fit, predict, explain and compare."""
    table = aam.read_table(folder / "table.biom")
    deep: aam.AmpliconTable = table[table.depths >= 500]
    values = np.arange(len(deep), dtype=np.float64)

    regressor = aam.AmpliconRegressor(rarefy_depth=500, members=["presence", "forest"])
    regressor = regressor.fit(deep, values, groups=[f"s{row // 2}" for row in range(len(deep))])
    predictions: npt.NDArray[np.float64] = regressor.predict(deep)
    intervals: npt.NDArray[np.float64] = regressor.predict_interval(deep)
    score: float = regressor.score(deep, values)
    regressor.save(folder / "model")

    classifier = aam.AmpliconClassifier(epochs=5, batch_size="auto", device="cpu")
    classes = classifier.fit(deep, values > score).predict(deep).tolist()
    shares: npt.NDArray[np.float64] = classifier.predict_proba(deep, new_study=False)
    print(predictions, intervals, classes, shares)

    model: aam.Model = aam.load([folder / "model", "second"], device="cpu", threads=2)
    targets: tuple[str, ...] = model.targets
    print(model.predict(deep, prediction_passes=3), model.embed(deep), targets, model.depth)
    print(model.explain(deep, folder / "metadata.tsv", output_dir="why", taxonomy="taxonomy.qza"))

    print(aam.audit(deep, folder / "metadata.tsv", "ph", group_column="subject"))
    print(aam.check_samples(deep, groups=classes).mixtures)
    print(aam.learning_curve(deep, folder / "metadata.tsv", "ph", cv="5", classifier=False))
    encoder: aam.Model = aam.pretrain(deep, "tree.nwk", output_dir="pre", epochs=2)
    print(encoder.distances(deep, "unifrac"), aam.unifrac(deep, "tree.nwk", "faith_pd"))
    try:
        status: int = aam.run("unifrac", table=folder / "table.biom", tree="tree.nwk", alpha=0.5)
    except aam.InputError as error:
        problems: tuple[str, ...] = error.problems
        print(problems)
    print(status)


def mistakes(folder: Path) -> None:
    """Each line is an error of types."""
    aam.AmpliconRegressor(rarefy_depth="deep")  # type: ignore[arg-type]
    aam.AmpliconRegressor(members=["forests"])  # type: ignore[list-item]
    aam.AmpliconClassifier(epoch=3)  # type: ignore[call-arg]
    aam.unifrac(folder, folder, "euclidean")  # type: ignore[call-overload]
    aam.load(3)  # type: ignore[arg-type]
    aam.pretrain("table.biom")  # type: ignore[call-arg]
