from aam.api.estimators import AmpliconClassifier as AmpliconClassifier
from aam.api.estimators import AmpliconRegressor as AmpliconRegressor
from aam.api.functions import pretrain as pretrain
from aam.api.functions import unifrac as unifrac
from aam.api.models import Model as Model
from aam.api.models import load as load
from aam.api.tables import AmpliconTable as AmpliconTable
from aam.api.tables import read_table as read_table
from aam.errors import InputError as InputError

__version__: str
