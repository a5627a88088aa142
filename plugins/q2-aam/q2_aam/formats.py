"""Semantic types of encoders, models, predictions and embeddings, and the formats that hold and
validate them.
"""

# The annotations of formats and transformers are read by QIIME 2, which takes no text for a type.

import csv
from pathlib import Path
from typing import Any

import pandas as pd
import qiime2
from q2_types.sample_data import SampleData
from qiime2.plugin import SemanticType, ValidationError, model

from aam.errors import InputError
from aam.files.atomic import read_json, verify_manifest

AmpliconEncoder = SemanticType("AmpliconEncoder")
AmpliconModel = SemanticType("AmpliconModel")
AmpliconPredictions = SemanticType("AmpliconPredictions", variant_of=SampleData.field["type"])
AmpliconEmbedding = SemanticType("AmpliconEmbedding", variant_of=SampleData.field["type"])


class ModelFileFormat(model.BinaryFileFormat):  # type: ignore[misc]
    """One file of a model folder; the folder is validated as a whole."""

    def _validate_(self, level: str) -> None:
        if not Path(str(self)).stat().st_size:
            raise ValidationError(f"{self}: the file is empty")


class ModelFolderFormat(model.DirectoryFormat):  # type: ignore[misc]
    """A model folder as `aam train` and `aam pretrain` write it: JSON and safetensors, below a
    manifest of digests.
    """

    files = model.FileCollection(r"[\w.-]+\.(json|safetensors)", format=ModelFileFormat)

    @files.set_path_maker  # type: ignore[untyped-decorator]
    def files_path_maker(self, name: str) -> str:
        """Return the path of a file inside the folder."""
        return name

    def _targets(self, level: str) -> list[Any]:
        """Return the targets of the model; digests are compared and, at the level max, the network
        is read.
        """
        path = Path(str(self))
        try:
            verify_manifest(path)
            description: Any = read_json(path / "model.json")
            if level == "max":
                import torch

                from aam.predict.saved_model import load_model

                load_model(path, torch.device("cpu"))
            return list(description["targets"]["specs"])
        except (InputError, KeyError, TypeError) as error:
            raise ValidationError(f"not a model of aam: {error}") from error


class EncoderFolderFormat(ModelFolderFormat):
    """A pretrained encoder, which has no targets."""

    def _validate_(self, level: str) -> None:
        if self._targets(level):
            raise ValidationError("a model with targets, expected an encoder of `pretrain`")


class TargetsFolderFormat(ModelFolderFormat):
    """A model that predicts metadata columns."""

    def _validate_(self, level: str) -> None:
        if not self._targets(level):
            raise ValidationError(
                "an encoder without targets, expected a model of fit-classifier or fit-regressor"
            )


class SampleTableFormat(model.TextFileFormat):  # type: ignore[misc]
    """Values by sample as tab-separated text, whose first column is ``sample-id``."""

    def _validate_(self, level: str) -> None:
        with self.open() as file:
            for number, row in enumerate(csv.reader(file, dialect="excel-tab")):
                if number == 0:
                    header = row
                    if row[:1] != ["sample-id"] or len(row) < 2:
                        raise ValidationError(
                            f"the header begins with {row[:2]}, expected sample-id and a column"
                        )
                elif len(row) != len(header):
                    raise ValidationError(
                        f"line {number + 1} has {len(row)} cells, expected {len(header)}"
                    )
                elif level == "min" and number == 5:
                    return


SampleTableFolderFormat = model.SingleFileDirectoryFormat(
    "SampleTableFolderFormat", "table.tsv", SampleTableFormat
)


def table_to_metadata(table: SampleTableFormat) -> qiime2.Metadata:
    """Return the values as metadata, for `qiime metadata tabulate` and plots."""
    values = pd.read_csv(str(table), sep="\t", dtype={"sample-id": str}).set_index("sample-id")
    return qiime2.Metadata(values.dropna(axis=1, how="all"))
