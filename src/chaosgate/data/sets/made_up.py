from chaosgate.data.synthetic import *  # old path; removed when every import is changed
from chaosgate.data.synthetic import write_synthetic as write_made_up
