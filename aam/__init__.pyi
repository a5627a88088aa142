from aam.api.audit import audit as audit
from aam.api.estimators import AmpliconClassifier as AmpliconClassifier
from aam.api.estimators import AmpliconRegressor as AmpliconRegressor
from aam.api.learning_curve import learning_curve as learning_curve
from aam.api.models import Model as Model
from aam.api.models import load as load
from aam.api.samples import check_samples as check_samples
from aam.api.training import pretrain as pretrain
from aam.api.unifrac import unifrac as unifrac
from aam.cli import run as run
from aam.data.inputs import read_table as read_table
from aam.errors import InputError as InputError
from aam.errors import UnlikeTrainingWarning as UnlikeTrainingWarning
from aam.io.tables import AmpliconTable as AmpliconTable

__version__: str
