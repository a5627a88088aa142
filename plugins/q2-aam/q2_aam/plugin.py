"""The plugin that QIIME 2 finds by the entry point ``qiime2.plugins``: types, formats and actions,
registered.
"""

from __future__ import annotations

from typing import Any

import qiime2
import skbio
from q2_types.distance_matrix import DistanceMatrix
from q2_types.feature_data import DNAFASTAFormat, FeatureData, Sequence
from q2_types.feature_table import BIOMV210Format, FeatureTable, Frequency
from q2_types.sample_data import SampleData
from q2_types.tree import NewickFormat, Phylogeny, Rooted
from qiime2.plugin import Categorical, MetadataColumn, Numeric, Plugin

import aam
from q2_aam import actions, formats, parameters

TABLE = {"table": FeatureTable[Frequency], "sequences": FeatureData[Sequence]}
TREE = {"phylogeny": Phylogeny[Rooted]}
VIEWS: dict[str, Any] = {
    "table": BIOMV210Format,
    "sequences": (DNAFASTAFormat, None),
    "phylogeny": (NewickFormat, None),
    "encoder": (formats.EncoderFolderFormat, None),
    "groups": (qiime2.CategoricalMetadataColumn, None),
    "sample_estimator": formats.TargetsFolderFormat,
}
ANY_COLUMN = MetadataColumn[Categorical | Numeric]
DESCRIPTIONS = {
    "table": "Reads of ASVs by sample, as they were sequenced: not rarefied, not normalized.",
    "sequences": (
        "Sequences of the ASVs; they may be left out where the ids of features are sequences."
    ),
    "phylogeny": "Rooted phylogeny of the ASVs, for the UniFrac loss.",
    "encoder": "Pretrained encoder to start from.",
    "metadata": "The metadata column to predict.",
    "groups": (
        "Subject (study, ...) of each sample; all samples of one stay together in every split."
    ),
    "sample_estimator": "A model of fit-classifier or fit-regressor.",
}


def _register(
    plugin: Plugin,
    name: str,
    title: str,
    run: Any,
    options: parameters.Parameters,
    types: dict[str, Any],
) -> None:
    """Register an action, whose description is that of `run`.

    `types` holds the semantic type of each artifact, the type of each metadata column, and under
    ``result`` those of the output by name; without it the action is a visualizer.
    """
    result = types.pop("result", None)
    columns = {each: types.pop(each) for each in ("metadata", "groups") if each in types}
    views = {each: VIEWS[each] for each in (*types, *columns) if each != "metadata"}
    if "metadata" in columns:
        views["metadata"] = qiime2.MetadataColumn
        if columns["metadata"] == MetadataColumn[Numeric]:
            views["metadata"] = qiime2.NumericMetadataColumn
        elif columns["metadata"] == MetadataColumn[Categorical]:
            views["metadata"] = qiime2.CategoricalMetadataColumn
    if name in ("unifrac", "embed"):
        required = {"unifrac": "phylogeny", "embed": "encoder"}[name]
        views[required] = VIEWS[required][0]
    if name == "unifrac":
        view: Any = skbio.DistanceMatrix
    else:
        view = None if result is None else run.__annotations__["return"]
        view = getattr(formats, view) if isinstance(view, str) else view
    if result is None:
        views = {"output_dir": str, **views}
    registration = {
        "function": parameters.action(name, run, views, options, view),
        "inputs": types,
        "parameters": columns | options.types,
        "input_descriptions": {each: DESCRIPTIONS[each] for each in types},
        "parameter_descriptions": {each: DESCRIPTIONS[each] for each in columns}
        | options.descriptions,
        "name": title,
        "description": (
            f"{run.__doc__} As the command `aam` does, with the same options and results."
        ),
    }
    if result is None:
        plugin.visualizers.register_function(**registration)
    else:
        plugin.methods.register_function(
            outputs=list(result.items()), output_descriptions={}, **registration
        )


def _register_types(plugin: Plugin) -> None:
    """Register semantic types, formats and transformers."""
    plugin.register_formats(
        formats.ModelFileFormat,
        formats.EncoderFolderFormat,
        formats.TargetsFolderFormat,
        formats.SampleTableFormat,
        formats.SampleTableFolderFormat,
    )
    names = ("AmpliconEncoder", "AmpliconModel", "AmpliconPredictions", "AmpliconEmbedding")
    plugin.register_semantic_types(*(getattr(formats, name) for name in names))
    for kind, form in (
        (formats.AmpliconEncoder, formats.EncoderFolderFormat),
        (formats.AmpliconModel, formats.TargetsFolderFormat),
        (SampleData[formats.AmpliconPredictions], formats.SampleTableFolderFormat),
        (SampleData[formats.AmpliconEmbedding], formats.SampleTableFolderFormat),
    ):
        plugin.register_semantic_type_to_format(kind, form)
    plugin.register_transformer(formats.table_to_metadata)


def make_plugin() -> Plugin:
    """Return the plugin with all that is registered."""
    made = Plugin(
        name="aam",
        version=aam.__version__,
        website="https://github.com/kwcantrell/attention-all-microbes",
        package="q2_aam",
        project_name="q2-aam",
        description=(
            "Transformers that read the DNA of each ASV and its abundance, pretrained on UniFrac."
        ),
        short_description="Attention All Microbes.",
    )
    _register_types(made)
    both, model = {**TABLE, **TREE}, formats.AmpliconModel
    fitted = {**both, "encoder": formats.AmpliconEncoder, "groups": MetadataColumn[Categorical]}
    applied = {**TABLE, "sample_estimator": model}
    judged = {**applied, "metadata": ANY_COLUMN, "groups": MetadataColumn[Categorical]}
    actions_of = (
        (
            "pretrain",
            "Pretrain an encoder",
            actions.pretrain,
            actions.PRETRAIN,
            {**both, "result": {"encoder": formats.AmpliconEncoder}},
        ),
        (
            "fit_regressor",
            "Train a model of numbers",
            actions.fit_regressor,
            actions.FIT,
            {**fitted, "metadata": MetadataColumn[Numeric], "result": {"sample_estimator": model}},
        ),
        (
            "fit_classifier",
            "Train a model of classes",
            actions.fit_classifier,
            actions.FIT,
            {
                **fitted,
                "metadata": MetadataColumn[Categorical],
                "result": {"sample_estimator": model},
            },
        ),
        (
            "cross_validate",
            "Cross-validate a model",
            actions.cross_validate,
            actions.CROSS_VALIDATE,
            {**fitted, "metadata": ANY_COLUMN},
        ),
        (
            "predict",
            "Predict samples",
            actions.predict,
            actions.PREDICT,
            {**applied, "result": {"predictions": SampleData[formats.AmpliconPredictions]}},
        ),
        (
            "evaluate",
            "Compare predictions with the truth",
            actions.evaluate,
            actions.EVALUATE,
            judged,
        ),
        ("explain", "Show what drives predictions", actions.explain, actions.EXPLAIN, dict(judged)),
        (
            "embed",
            "Vectors of samples",
            actions.embed,
            actions.EMBED,
            {
                **TABLE,
                "encoder": formats.AmpliconEncoder,
                "result": {"embedding": SampleData[formats.AmpliconEmbedding]},
            },
        ),
        (
            "unifrac",
            "UniFrac distances",
            actions.unifrac_distances,
            actions.UNIFRAC,
            {"table": TABLE["table"], **TREE, "result": {"distance_matrix": DistanceMatrix}},
        ),
    )
    for name, title, run, options, types in actions_of:
        _register(made, name, title, run, options, dict(types))
    return made


plugin = make_plugin()
